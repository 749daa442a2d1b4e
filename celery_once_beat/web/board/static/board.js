// Keeps the page as the server sees it. The server has rendered it and says what has changed; here texts, classes and
// links are put in their places, and nothing is made of strings but whole pages of our own.

const policy = window.trustedTypes
  ? window.trustedTypes.createPolicy("board", { createHTML: (html) => html })
  : { createHTML: (html) => html };

const SILENCE = 15_000; // ms without news after which the connection counts as lost
const RETRY = 5_000;

const $ = (id) => document.getElementById(id);
const story = $("story");
const hint = $("hint");

/** The page that the board's server has at an address of its own. */
async function fetchPage(address) {
  const answer = await fetch(address, { credentials: "same-origin", headers: { accept: "text/html" } });
  if (!answer.ok && answer.status !== 404) throw new Error(`${answer.status}`);
  return new DOMParser().parseFromString(policy.createHTML(await answer.text()), "text/html");
}

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

/** Writes only what differs: a screen reader says what is written. */
function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// -- where the keyboard is: one window of the grid is in the tab order, arrows move on -----------------------------

const links = (row) => row.querySelectorAll(".cells a");
const startOf = (link) => link.getAttribute("href").split("/").pop();
let current = null;

function setCurrent(link) {
  if (current && current !== link) current.tabIndex = -1;
  current = link;
  if (link) link.tabIndex = 0;
}

const shown = (row) => !row.hidden && (!$("grid").classList.contains("only") || row.classList.contains("worry"));

/** The next row that is shown and has windows; `step` is 1 or -1. */
function rowFrom(row, step) {
  let next = row;
  do next = step > 0 ? next.nextElementSibling : next.previousElementSibling;
  while (next && !(shown(next) && links(next).length));
  return next;
}

function keepCurrent() {
  const grid = $("grid");
  if (!grid) return setCurrent(null);
  if (current?.isConnected && shown(current.closest("[role=row]"))) return undefined;
  const row = [...grid.children].find((candidate) => shown(candidate) && links(candidate).length);
  return setCurrent(row ? links(row)[0] : null);
}

function onKey(event) {
  const link = event.target.closest?.(".cells a");
  if (!link || event.altKey || event.metaKey) return;
  const row = link.closest("[role=row]");
  const all = [...links(row)];
  const at = all.indexOf(link);
  const inRow = (other) => other && links(other)[Math.min(at, links(other).length - 1)];
  const pages = (step) => {
    let other = row;
    for (let left = 10, next; left && (next = rowFrom(other, step)); left -= 1) other = next;
    return other;
  };
  const edge = (step) => {
    let other = row;
    for (let next; (next = rowFrom(other, step)); ) other = next;
    return other;
  };
  let to;
  switch (event.key) {
    case "ArrowRight": to = all[at + 1]; break;
    case "ArrowLeft": to = all[at - 1]; break;
    case "ArrowDown": to = inRow(rowFrom(row, 1)); break;
    case "ArrowUp": to = inRow(rowFrom(row, -1)); break;
    case "PageDown": to = inRow(pages(1)); break;
    case "PageUp": to = inRow(pages(-1)); break;
    case "Home": to = event.ctrlKey ? links(edge(-1))[0] : all[0]; break;
    case "End": to = event.ctrlKey ? [...links(edge(1))].pop() : all[all.length - 1]; break;
    default: return;
  }
  event.preventDefault();
  if (to) {
    to.focus();
    to.scrollIntoView({ block: "nearest" });
  }
}

// -- what a window says: at the foot of the page while it is pointed at, its story on a click ----------------------

function say(event) {
  const link = event.target.closest?.(".cells a");
  if (link && event.type === "focusin") setCurrent(link);
  hint.hidden = !link;
  if (link) hint.textContent = link.getAttribute("aria-label");
}

let told = null; // the link whose story is open

async function tell(link) {
  told = link;
  let content;
  try {
    const page = await fetchPage(link.href);
    content = page.getElementById("told") ?? element("p", page.querySelector("main p").textContent);
  } catch {
    content = element("p", "The board can't be reached: this window's story can't be told now.");
  }
  if (told !== link) return; // another was asked for meanwhile
  if (content.id !== "told") content.id = "story-heading"; // the dialog's name
  const close = element("button", "Close");
  close.type = "button";
  close.addEventListener("click", () => story.close());
  const within = story.contains(document.activeElement);
  story.replaceChildren(close, content);
  if (!story.open) story.showModal();
  else if (within) close.focus();
}

story.addEventListener("close", () => {
  const link = told;
  told = null;
  if (link?.isConnected) link.focus();
});
story.addEventListener("click", (event) => {
  if (event.target === story) story.close(); // beside it
});

document.addEventListener("click", (event) => {
  if (event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const link = event.target.closest?.(".cells a");
  if (link) {
    event.preventDefault();
    setCurrent(link);
    tell(link);
  } else if (event.target.id === "only") {
    event.preventDefault();
    showOnly(!$("grid")?.classList.contains("only"));
  }
});

// -- filters -------------------------------------------------------------------------------------------------------

let wanted = "";

function showOnly(only) {
  history.replaceState(null, "", only ? "?only=attention" : "./");
  $("grid")?.classList.toggle("only", only);
  write($("only"), only ? "Show all entries" : "Show only what needs attention");
  $("only").setAttribute("href", only ? "./" : "?only=attention");
  filter();
}

function filter() {
  const grid = $("grid");
  if (!grid) return;
  for (const row of grid.children) {
    row.hidden = !row.querySelector("b").textContent.toLowerCase().includes(wanted);
  }
  const narrowed = wanted || grid.classList.contains("only");
  const number = narrowed ? [...grid.children].filter(shown).length : 0;
  write($("found"), narrowed ? `${number} of ${grid.children.length} shown` : "");
  keepCurrent();
}

// -- news ----------------------------------------------------------------------------------------------------------

function changeLine(row, line) {
  if (line.about !== undefined) write(row.querySelector(".about"), line.about);
  if (line.next !== undefined) write(row.querySelector(".next"), line.next);
  if (line.attention !== undefined) {
    write(row.querySelector(".attention"), line.attention.join("; "));
    row.classList.toggle("worry", line.attention.length > 0);
  }
  if (!line.cells && !line.gone) return;
  const cells = row.querySelector(".cells");
  const known = new Map([...links(row)].map((link) => [startOf(link), link]));
  for (const start of line.gone ?? []) {
    known.get(start)?.parentNode.remove();
    known.delete(start);
  }
  for (const [start, state, label] of line.cells ?? []) {
    let link = known.get(start);
    if (!link) {
      link = element("a");
      link.href = `window/${row.id.slice(1)}/${start}`;
      link.tabIndex = -1;
      const cell = element("span");
      cell.setAttribute("role", "gridcell");
      cell.append(link);
      // Instants are texts of one width: their order is that of time. The newest comes first.
      const after = [...cells.children].find((other) => other.firstElementChild && startOf(other.firstElementChild) < start);
      cells.insertBefore(cell, after ?? null);
      known.set(start, link);
    }
    link.className = state;
    link.setAttribute("aria-label", label);
    if (link === told) tell(link);
  }
  if (known.size) cells.querySelector(".none")?.remove();
}

function changePage(news) {
  write($("headline"), news.headline);
  write($("as-of"), news.as_of ? `As of ${news.as_of}` : "");
  write($("code"), news.code);
  write($("trouble"), news.trouble ? `${news.trouble}. What is shown is older.` : "");
  document.title = document.title.replace(/^(\(\d+\) )?/, news.worries ? `(${news.worries}) ` : "");
  if (news.beats) {
    $("beats").replaceChildren(
      ...news.beats.map(([name, words]) => {
        const item = element("li");
        item.append(element("b", name), " ", element("span", words));
        return item;
      }),
    );
    if (!news.beats.length) $("beats").append(element("li", "No beat lives: nothing is claimed.", "none"));
  }
  const lines = Object.entries(news.lines);
  for (const [id, line] of lines) {
    const row = $(`e${id}`);
    if (row) changeLine(row, line);
  }
  if (lines.some(([, line]) => line.attention)) filter();
  else keepCurrent();
}

/** Other entries, or news that were missed: the whole page, where the keyboard stays with its window. */
async function readAnew() {
  const page = await fetchPage(location.href);
  const board = page.getElementById("board");
  if (!board) throw new Error("this isn't the board");
  const focused = document.activeElement?.closest?.(".cells a")?.getAttribute("href");
  const typing = document.activeElement?.matches?.("#search input");
  $("board").replaceWith(board);
  document.title = page.title;
  dress();
  if (typing) document.querySelector("#search input").focus();
  else if (focused) document.querySelector(`.cells a[href="${focused}"]`)?.focus();
}

/** What the server's page lacks, since it works without this script. */
function dress() {
  const search = $("search");
  search.hidden = false;
  const input = search.querySelector("input");
  input.value = wanted;
  input.addEventListener("input", () => {
    wanted = input.value.toLowerCase();
    filter();
  });
  for (const link of document.querySelectorAll(".cells a")) link.tabIndex = -1;
  const grid = $("grid");
  grid?.addEventListener("keydown", onKey);
  for (const type of ["mouseover", "mouseleave", "focusin", "focusout"]) grid?.addEventListener(type, say);
  current = null;
  filter();
  connection(live);
}

let live = false;

function connection(now) {
  live = now;
  $("board").classList.toggle("live", now);
  write($("connection"), now ? "live" : "not live: trying again");
}

let source = null;
let silence = 0;
let again = 0;

function lost() {
  connection(false);
  if (source?.readyState !== EventSource.CLOSED) return;
  clearTimeout(again);
  again = setTimeout(listen, RETRY); // refused, as when too many look: the browser doesn't try again by itself
}

function heard() {
  connection(true);
  clearTimeout(silence);
  silence = setTimeout(() => {
    connection(false);
    listen();
  }, SILENCE);
}

function listen() {
  hush();
  source = new EventSource(`events?since=${encodeURIComponent($("board").dataset.position)}`);
  source.addEventListener("news", (event) => {
    heard();
    $("board").dataset.position = event.lastEventId;
    changePage(JSON.parse(event.data));
  });
  source.addEventListener("anew", () => {
    heard();
    hush();
    readAnew().then(listen, () => {
      connection(false);
      again = setTimeout(listen, RETRY);
    });
  });
  source.addEventListener("error", lost);
}

function hush() {
  source?.close();
  clearTimeout(silence);
  clearTimeout(again);
}

// A page that nobody sees asks for nothing: the server rests, and a browser's few connections are for those that are seen.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    hush();
    connection(false);
  } else {
    listen();
  }
});

dress();
if (!document.hidden) listen();
