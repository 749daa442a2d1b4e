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

/** Puts HTML of the board's own into an element; where the keyboard is in it, it stays. */
function fill(node, html) {
  const focused = node.contains(document.activeElement) ? document.activeElement.id : "";
  node.replaceChildren(...parse(html).body.childNodes);
  if (focused) $(focused)?.focus();
}

/** Writes only what differs: a screen reader says what is written. */
function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// -- how long ago, or until, beside each time; by the server's clock ------------------------------------------------

const UNITS = [["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]];
let ahead = 0; // seconds by which the server's clock is ahead of this one

function sayHowLong() {
  const now = Date.now() / 1000 + ahead;
  for (const time of document.querySelectorAll("time")) {
    const away = Date.parse(time.dateTime) / 1000 - now;
    const [unit, size] = UNITS.find(([, least]) => Math.abs(away) >= least) ?? UNITS[3];
    const number = `${Math.floor(Math.abs(away) / size)} ${unit}`;
    const said = away > 0 ? `in ${number}` : `${number} ago`;
    if (time.dataset.away !== said) time.dataset.away = said;
  }
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
  for (const link of document.querySelectorAll("#grid a, #grid input")) {
    if (link !== current && link.tabIndex !== -1) link.tabIndex = -1;
  }
  if (current?.isConnected) return;
  const row = [...($("grid")?.children ?? [])].find((candidate) => links(candidate).length);
  setCurrent(row ? links(row).pop() : null);
}

/** Keys that do something wherever the keyboard is, but for where somebody types. */
function onAnyKey(event) {
  if (event.altKey || event.metaKey || event.ctrlKey || story.open) return;
  if (event.target.closest?.("input:not([type=checkbox]), textarea")) return;
  if ("/?".includes(event.key)) $("fold").firstElementChild.checked = true;
  if (event.key === "/") $("search").querySelector("input").focus();
  else if (event.key === "?") {
    $("legend-toggle").open = !$("legend-toggle").open;
    $("legend-toggle").querySelector("summary").focus();
  } else if ("jk".includes(event.key) && !event.target.closest?.("#grid a")) current?.focus();
  else return;
  event.preventDefault();
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
    case "x": row.querySelector("[name=line]")?.click(); break;
    case "j":
    case "ArrowDown": to = nearest(rowFrom(row, 1), column); break;
    case "k":
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

// A story's address is the page's, with the story's own behind a #: so a link leads to it, and Back closes it.
const STORY = /^#((window|entry)\/(\w+)(\/[\w:.-]+)?(\?[\w=&:.%+/-]*)?)$/;

let told = ""; // the address, within the board, whose story is open
let opener = null; // the link of the grid that opened it
let said = ""; // its HTML, as the server told it last

/** Opens a story. One that takes another's place, or that of one that was closed, adds nothing to what Back goes through. */
function open(address) {
  if (history.state === "story") history.replaceState("story", "", `#${address}`);
  else history.pushState("story", "", `#${address}`);
  followHash();
}

/** Shows the story that the page's address names, or none. */
function followHash() {
  const [, address] = STORY.exec(location.hash) ?? [];
  if (address) tell(address);
  else if (story.open) story.close();
}

async function tell(address) {
  const before = told; // the same: what somebody types in it stays
  told = address;
  const base = new URL(address, document.baseURI);
  let content;
  try {
    const page = await fetchPage(base);
    content = page.getElementById("told");
    if (!content && before === address) {
      if (told === address) told = ""; // its window has gone: the story stays as it was last sent
      return;
    }
    content ??= element("p", page.querySelector("main p").textContent);
    // What is relative to the story's own page isn't relative to this one.
    for (const link of content.querySelectorAll("a")) link.href = new URL(link.getAttribute("href"), base).href;
    for (const form of content.querySelectorAll("form")) {
      form.action = new URL(form.getAttribute("action"), base).href;
      form.elements.view.value = `${location.search}#${address.split("?")[0]}`;
    }
  } catch {
    content = element("p", "The board can't be reached: this story can't be told now.");
  }
  if (told !== address) return; // another was asked for meanwhile
  if (content.id !== "told") content.id = "story-heading"; // the dialog's name
  if (story.open && content.innerHTML === said) return;
  if (before === address && (story.querySelector("input:focus") || story.querySelector("[name=note]")?.value)) return;
  said = content.innerHTML;
  const focused = document.activeElement?.href;
  const within = story.contains(document.activeElement);
  const close = element("button", "Close");
  close.type = "button";
  close.addEventListener("click", () => story.close());
  story.replaceChildren(close, content);
  sayHowLong();
  if (!story.open) story.showModal();
  else if (within) (links(story).find((link) => link.href === focused) ?? close).focus();
}

story.addEventListener("close", () => {
  told = "";
  if (STORY.test(location.hash)) history.replaceState("story", "", here());
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
    open(link.href.slice(new URL("./", document.baseURI).href.length));
  }
});

// -- another view --------------------------------------------------------------------------------------------------

const here = () => location.href.split("#")[0]; // without the story
let shown = location.href.split("#")[0]; // the address of the view whose links stand on the page

/** Where a link leads while another view is on its way: to that one, with what the link changes of the one shown. */
function leadingTo(href) {
  if (shown === here()) return href;
  const views = [shown, here(), href].map((address) => new URL(address).searchParams);
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
  const address = here();
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
  const unfolded = $("fold").firstElementChild.checked;
  // The field in which somebody types stays.
  const search = $("search");
  const typed = document.activeElement === search.querySelector("input");
  if (!typed) search.querySelector("input").value = board.querySelector("#search input").value;
  board.querySelector("#search").replaceWith(search);
  for (const pick of document.querySelectorAll("#grid :checked")) {
    const again = board.querySelector(`#grid [value="${pick.value}"]`);
    if (again) again.checked = true;
  }
  $("board").replaceWith(board);
  document.title = page.title;
  shown = address;
  dress();
  $("legend-toggle").open = legend;
  $("fold").firstElementChild.checked ||= unfolded;
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

window.addEventListener("popstate", () => {
  if (here() !== shown) readAnew();
  followHash();
});

// -- news ----------------------------------------------------------------------------------------------------------

/** Puts rows in their places; which are new or others, and the order of all where it is another. */
function changeRows(rows, order) {
  const grid = $("grid");
  const focused = grid.contains(document.activeElement) ? document.activeElement : null;
  const picks = focused?.name === "line";
  const [href, row] = [focused?.getAttribute("href"), focused?.closest("[role=row]").id];
  const fresh = Object.values(rows);
  if (fresh.length) {
    for (const made of [...parse(fresh.join("")).body.children]) {
      const old = $(made.id);
      if (old?.querySelector("[name=line]:checked")) made.querySelector("[name=line]").checked = true;
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
  if (focused && !focused.isConnected) ((picks && $(row)?.querySelector("input")) || (inGrid(href, row) ?? current))?.focus();
  return true;
}

function changePage(news) {
  document.title = document.title.replace(/^(\(\d+\) )?/, news.worries ? `(${news.worries}) ` : "");
  if (!news.stale) ahead = news.now - Date.now() / 1000; // else it is when the page was true
  for (const [id, html] of Object.entries(news.parts)) fill($(id), html);
  if (!changeRows(news.rows, news.order)) readAnew();
  sayHowLong();
  // While a window runs, its story is updated. The story of a window that is gone stays as it was last sent.
  const row = told && $(`e${told.split(/[/?]/)[1]}`);
  if (told && story.querySelector("#told") && (!row || row.querySelector(".cells a"))) tell(told);
}

/** What the server's page lacks, since it works without this script. */
function dress() {
  const search = $("search");
  search.hidden = false;
  const grid = $("grid");
  grid.addEventListener("keydown", onKey);
  for (const type of ["mouseover", "mouseleave", "focusin", "focusout"]) grid.addEventListener(type, say);
  grid.scrollLeft = grid.scrollWidth; // the newest
  current = null;
  keepCurrent();
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const own = $("zone-own");
  own.search = new URLSearchParams([...new URL(own.href).searchParams, ["zone", zone]]);
  own.textContent = `${zone}, yours`;
  own.parentNode.hidden = false;
  if (!("stale" in $("board").dataset)) ahead = Number($("board").dataset.now) - Date.now() / 1000;
  sayHowLong();
  connection(live);
}

let typing = 0;

$("search").querySelector("input").addEventListener("input", (event) => {
  clearTimeout(typing);
  const typed = event.target.value; // a view that comes meanwhile may write another
  typing = setTimeout(() => {
    const address = new URL(here());
    for (const name of ["page", "done", "seal"]) address.searchParams.delete(name); // of another moment
    if (typed) address.searchParams.set("q", typed);
    else address.searchParams.delete("q");
    go(address.href, { replace: true });
  }, TYPED);
});

document.addEventListener("keydown", onAnyKey);

// A phone that is turned shows the newest windows, too; a bar of its browser that comes or goes changes nothing.
let width = innerWidth;
window.addEventListener("resize", () => {
  if (innerWidth === width) return;
  width = innerWidth;
  $("grid").scrollLeft = $("grid").scrollWidth;
});

// Esc closes a menu, and the keyboard is where it was opened.
document.addEventListener("keydown", (event) => {
  const menu = event.key === "Escape" && event.target.closest?.("#filters details[open]");
  if (!menu) return;
  menu.open = false;
  menu.querySelector("summary").focus();
});

let live = false;

/** Says whether what is shown is of this moment: news come, and Redis can be read. */
function connection(now, stale = "stale" in $("board").dataset) {
  live = now && !stale;
  $("board").classList.toggle("live", live);
  write($("connection"), live ? "live" : now ? "not live: Redis is away" : "not live: trying again");
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
    const news = JSON.parse(event.data);
    heard();
    connection(true, news.stale);
    $("board").dataset.position = event.lastEventId;
    changePage(news);
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
followHash();
if (!document.hidden) listen();
