// Keeps the page as the server sees it. The server renders each row and says which have changed; here they are put in
// their places. A view is an address: whatever is chosen leads to the page that the server has there.

const policy = window.trustedTypes
  ? window.trustedTypes.createPolicy("board", { createHTML: (html) => html })
  : { createHTML: (html) => html };

const SILENCE = 15_000; // ms without news after which the connection counts as lost
const RETRY = 5_000;
const TYPED = 200; // ms after the last key until what was typed is looked for

const $ = (id) => document.getElementById(id);
const story = $("story");
const hint = $("hint");

/** The board's own HTML as a document. */
const parse = (html) => new DOMParser().parseFromString(policy.createHTML(html), "text/html");

/** The page that the board's server has at an address of its own. */
async function fetchPage(address) {
  const answer = await fetch(address, { credentials: "same-origin", headers: { accept: "text/html" } });
  if (!answer.ok && answer.status !== 404) throw new Error(`${answer.status}`);
  return parse(await answer.text());
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

// -- where the keyboard is: one link of the grid is in the tab order, arrows move on -------------------------------

const links = (row) => [...row.querySelectorAll("a")];
/** The column of a link; that of a name is 0. */
const columnOf = (link) => Number(/^c(\d+)$/.exec(link.parentNode.className)?.[1] ?? 0);
let current = null;

function setCurrent(link) {
  if (current && current !== link) current.tabIndex = -1;
  current = link;
  if (link) link.tabIndex = 0;
}

/** The nearest row with links, `step` is 1 or -1. */
function rowFrom(row, step) {
  let next = row;
  do next = step > 0 ? next.nextElementSibling : next.previousElementSibling;
  while (next && !links(next).length);
  return next;
}

/** The row `count` rows further on, or the last one there is. */
function rowsFrom(row, step, count) {
  let reached = row;
  for (let next; count && (next = rowFrom(reached, step)); count -= 1) reached = next;
  return reached;
}

/** The link of a row that stands nearest to a column. */
function nearest(row, column) {
  const away = (link) => Math.abs(columnOf(link) - column);
  return row && links(row).reduce((best, link) => (away(link) < away(best) ? link : best));
}

function keepCurrent() {
  for (const link of document.querySelectorAll("#grid a")) if (link !== current) link.tabIndex = -1;
  if (current?.isConnected) return;
  const row = [...($("grid")?.children ?? [])].find((candidate) => links(candidate).length);
  setCurrent(row ? links(row).pop() : null);
}

function onKey(event) {
  const link = event.target.closest?.("#grid a");
  if (!link || event.altKey || event.metaKey) return;
  const row = link.closest("[role=row]");
  const all = links(row);
  const at = all.indexOf(link);
  const column = columnOf(link);
  let to;
  switch (event.key) {
    case "ArrowRight": to = all[at + 1]; break;
    case "ArrowLeft": to = all[at - 1]; break;
    case "ArrowDown": to = nearest(rowFrom(row, 1), column); break;
    case "ArrowUp": to = nearest(rowFrom(row, -1), column); break;
    case "PageDown": to = nearest(rowsFrom(row, 1, 10), column); break;
    case "PageUp": to = nearest(rowsFrom(row, -1, 10), column); break;
    case "Home": to = links(event.ctrlKey ? rowsFrom(row, -1, Infinity) : row)[0]; break;
    case "End": to = links(event.ctrlKey ? rowsFrom(row, 1, Infinity) : row).pop(); break;
    default: return;
  }
  event.preventDefault();
  if (to) {
    to.focus();
    to.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
}

// -- what a cell says: at the foot of the page while it is pointed at, its story on a click -------------------------

function say(event) {
  const link = event.target.closest?.("#grid a");
  if (link && event.type === "focusin") setCurrent(link);
  // A name says all of its row's head, which may be cut off.
  const label = link?.getAttribute("aria-label") ?? link?.parentNode.textContent.trim();
  hint.hidden = !label;
  if (label) hint.textContent = label;
}

let told = null; // the address whose story is open
let opener = null; // the link of the grid that opened it
let said = ""; // its HTML, as the server told it last

async function tell(address) {
  told = address;
  let content;
  try {
    const page = await fetchPage(address);
    content = page.getElementById("told") ?? element("p", page.querySelector("main p").textContent);
    // What is relative to the story's own page isn't relative to this one.
    for (const link of content.querySelectorAll("a")) link.href = new URL(link.getAttribute("href"), address).href;
  } catch {
    content = element("p", "The board can't be reached: this story can't be told now.");
  }
  if (told !== address) return; // another was asked for meanwhile
  if (content.id !== "told") content.id = "story-heading"; // the dialog's name
  if (story.open && content.innerHTML === said) return;
  said = content.innerHTML;
  const focused = document.activeElement?.href;
  const within = story.contains(document.activeElement);
  const close = element("button", "Close");
  close.type = "button";
  close.addEventListener("click", () => story.close());
  story.replaceChildren(close, content);
  if (!story.open) story.showModal();
  else if (within) (links(story).find((link) => link.href === focused) ?? close).focus();
}

story.addEventListener("close", () => {
  told = null;
  const again = opener?.isConnected ? opener : inGrid(opener?.getAttribute("href"), opener?.closest("[role=row]")?.id);
  (again ?? current)?.focus();
});
story.addEventListener("click", (event) => {
  if (event.target === story) story.close(); // beside it
});

document.addEventListener("click", (event) => {
  if (event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const link = event.target.closest?.("#grid a, #story a.told, a[data-view]");
  if (!link) {
    // A menu is closed by a click beside it.
    for (const menu of document.querySelectorAll("#filters details[open]")) {
      if (!menu.contains(event.target)) menu.open = false;
    }
    return;
  }
  event.preventDefault();
  if ("view" in link.dataset) {
    go(leadingTo(link.href));
  } else {
    if (!story.contains(link)) {
      opener = link;
      setCurrent(link);
    }
    tell(link.href);
  }
});

// -- another view --------------------------------------------------------------------------------------------------

let shown = location.href; // the address of the view whose links stand on the page

/** Where a link leads while another view is on its way: to that one, with what the link changes of the one shown. */
function leadingTo(href) {
  if (shown === location.href) return href;
  const views = [shown, location.href, href].map((address) => new URL(address).searchParams);
  const made = new URL(href); // also its page: another view begins at its first rows
  for (const name of new Set(views.flatMap((view) => [...view.keys()]))) {
    if (name === "page") continue;
    const [before, asked, wanted] = views.map((view) => view.getAll(name));
    let values = before.join() === wanted.join() ? asked : wanted;
    if (name === "open") {
      // Groups are opened and folded one by one.
      const both = new Set([...asked, ...wanted]);
      values = [...both].filter((group) => !before.includes(group) || (asked.includes(group) && wanted.includes(group)));
    }
    made.searchParams.delete(name);
    for (const value of values) made.searchParams.append(name, value);
  }
  return made.href;
}

/** Shows the view of another address, which the browser's history then has. */
async function go(address, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", address);
  await readAnew();
}

let reading = 0;

/** The page at the present address, whole; where the keyboard is, it stays. */
async function readAnew() {
  const turn = (reading += 1);
  hush();
  const address = location.href;
  const page = await fetchPage(address).catch(() => null);
  if (turn !== reading) return; // another was asked for meanwhile
  const board = page?.getElementById("board");
  if (!board) {
    connection(false);
    again = setTimeout(readAnew, RETRY);
    return;
  }
  const focused = document.activeElement;
  const [id, href, row] = [focused?.id, focused?.getAttribute?.("href"), focused?.closest?.("[role=row]")?.id];
  const menu = focused?.closest?.("details");
  const summary = focused?.localName === "summary" ? menu?.id : null;
  const legend = $("legend-toggle").open;
  // The field in which somebody types stays.
  const search = $("search");
  const typed = document.activeElement === search.querySelector("input");
  if (!typed) search.querySelector("input").value = board.querySelector("#search input").value;
  board.querySelector("#search").replaceWith(search);
  $("board").replaceWith(board);
  document.title = page.title;
  shown = address;
  dress();
  $("legend-toggle").open = legend;
  if (typed) search.querySelector("input").focus();
  else if (row) (inGrid(href, row) ?? current)?.focus();
  else if (summary && $(summary)) {
    $(summary).open = menu.open; // opened meanwhile; one that was chosen from closes
    $(summary).querySelector("summary").focus();
  } else if (menu) $(menu.id)?.querySelector("summary").focus();
  else if (id) $(id)?.focus();
  if (!document.hidden) listen();
}

/** The link of the grid with this address; else the newest of its row. */
function inGrid(href, row) {
  const found = row && $(row) ? links($(row)) : [];
  return found.find((link) => link.getAttribute("href") === href) ?? found.pop();
}

window.addEventListener("popstate", readAnew);

// -- news ----------------------------------------------------------------------------------------------------------

/** Puts rows in their places; which are new or others, and the order of all where it is another. */
function changeRows(rows, order) {
  const grid = $("grid");
  const focused = grid.contains(document.activeElement) ? document.activeElement : null;
  const [href, row] = [focused?.getAttribute("href"), focused?.closest("[role=row]").id];
  const fresh = Object.values(rows);
  if (fresh.length) {
    for (const made of [...parse(fresh.join("")).body.children]) {
      const old = $(made.id);
      if (old) old.replaceWith(made);
      else grid.append(made);
    }
  }
  if (order) {
    const wanted = new Set(order);
    for (const old of [...grid.children]) if (!wanted.has(old.id)) old.remove();
    let place = grid.firstElementChild;
    for (const id of order) {
      const next = $(id);
      if (!next) return false; // it was told while this page wasn't listening
      if (next === place) place = place.nextElementSibling;
      else grid.insertBefore(next, place);
    }
  }
  keepCurrent();
  if (focused && !focused.isConnected) (inGrid(href, row) ?? current)?.focus();
  return true;
}

/** Names, and what each says. */
function list(node, named, none) {
  const items = named.map(([name, words]) => {
    const item = element("li");
    item.append(element("b", name), " ", element("span", words));
    return item;
  });
  node.replaceChildren(...(items.length ? items : [none]));
}

function changePage(news) {
  write($("headline"), news.headline);
  write($("as-of"), news.as_of ? `As of ${news.as_of}` : "");
  write($("code"), news.code);
  write($("trouble"), news.trouble);
  write($("found"), news.found);
  document.title = document.title.replace(/^(\(\d+\) )?/, news.worries ? `(${news.worries}) ` : "");
  if (news.beats) list($("beats"), news.beats, element("li", "No beat lives: nothing is claimed.", "none"));
  if (news.workers) list($("workers"), news.workers, element("li", "None has begun a window."));
  if (news.pager) $("pager").replaceWith(parse(news.pager).body.firstElementChild);
  // The first entries come, or the last ones go: the page has another form.
  const whole = $("grid") ? changeRows(news.rows, news.order) : !news.order;
  if (!whole) readAnew();
  // While a window runs, its story is updated. The story of a window that is gone stays as it was last sent.
  const [, kind, line] = /(window|entry)\/(\w+)/.exec(told ?? "") ?? [];
  if (kind && $(`e${line}`)?.querySelector(".cells a") && story.querySelector("#told")) tell(told);
}

/** What the server's page lacks, since it works without this script. */
function dress() {
  const search = $("search");
  search.hidden = false;
  const grid = $("grid");
  grid?.addEventListener("keydown", onKey);
  for (const type of ["mouseover", "mouseleave", "focusin", "focusout"]) grid?.addEventListener(type, say);
  if (grid) grid.scrollLeft = grid.scrollWidth; // the newest
  current = null;
  keepCurrent();
  connection(live);
}

let typing = 0;

$("search").querySelector("input").addEventListener("input", (event) => {
  clearTimeout(typing);
  const typed = event.target.value; // a view that comes meanwhile may write another
  typing = setTimeout(() => {
    const address = new URL(location.href);
    address.searchParams.delete("page");
    if (typed) address.searchParams.set("q", typed);
    else address.searchParams.delete("q");
    go(address.href, { replace: true });
  }, TYPED);
});

// Esc closes a menu, and the keyboard is where it was opened.
document.addEventListener("keydown", (event) => {
  const menu = event.key === "Escape" && event.target.closest?.("#filters details[open]");
  if (!menu) return;
  menu.open = false;
  menu.querySelector("summary").focus();
});

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
  const asked = new URLSearchParams(location.search);
  asked.set("since", $("board").dataset.position);
  source = new EventSource(`events?${asked}`);
  source.addEventListener("news", (event) => {
    heard();
    $("board").dataset.position = event.lastEventId;
    changePage(JSON.parse(event.data));
  });
  source.addEventListener("anew", () => {
    heard();
    readAnew();
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
