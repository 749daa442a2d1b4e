// Leads from what the board's page shows of an entry to the page of its orders. What is marked with data-entry came from
// a page at another depth: its link is made anew, seen from here.

function lead(node) {
  for (const part of node.querySelectorAll("[data-entry]")) {
    const link = part.querySelector("a") ?? part.appendChild(document.createElement("a"));
    const address = `orders/${part.dataset.entry}`;
    if (link.getAttribute("href") === address) continue;
    link.href = address;
    link.textContent ||= "Run, pause, abandon";
  }
}

const story = document.getElementById("story");
new MutationObserver(() => lead(story)).observe(story, { childList: true, subtree: true });
