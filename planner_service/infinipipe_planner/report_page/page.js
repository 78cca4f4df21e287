"use strict";
// Without this script all drawn steps stand below each other; with it, one is shown.
const articles = [...document.querySelectorAll("article")];
const choice = document.getElementById("choice");
const previous = document.getElementById("previous");
const next = document.getElementById("next");
let position = articles.length - 1;

function show(index, remember) {
  position = Math.min(Math.max(index, 0), articles.length - 1);
  const step = articles[position].dataset.step;
  articles.forEach((article, other) => { article.hidden = other !== position; });
  document.querySelectorAll(".mark").forEach((mark) => mark.classList.toggle("chosen", mark.dataset.step === step));
  choice.value = step;
  previous.disabled = position === 0;
  next.disabled = position === articles.length - 1;
  if (remember) history.replaceState(null, "", "#step-" + step);
}

function find(step) {
  return articles.findIndex((article) => article.dataset.step === step);
}

function follow() {
  const index = find(location.hash.replace("#step-", ""));
  if (index < 0) return;
  show(index, false);
  articles[index].querySelector("h3").focus({ preventScroll: true });
  document.getElementById("steps").scrollIntoView();
}

previous.addEventListener("click", () => show(position - 1, true));
next.addEventListener("click", () => show(position + 1, true));
choice.addEventListener("change", () => show(find(choice.value), true));
window.addEventListener("hashchange", follow);
document.querySelectorAll(".mark").forEach((mark) => mark.addEventListener("click", () => {
  const index = find(mark.dataset.step);
  if (index >= 0) show(index, true);
}));
document.addEventListener("keydown", (event) => {
  const turn = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!turn || event.altKey || event.ctrlKey || event.metaKey || event.target.tagName === "SELECT") return;
  // A wide drawing that has the focus scrolls with the same keys.
  const region = event.target.closest(".scroll");
  if (region && region.scrollWidth > region.clientWidth) return;
  event.preventDefault();
  show(position + turn, true);
});
show(position, false);
follow();
