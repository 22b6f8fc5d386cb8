// Local times, the state of the connection, keys, and the number of selected runs. Every page works without it.
(function () {
  "use strict";
  var base = document.body.dataset.base || "";
  var since = 0;

  function ago(seconds) {
    var units = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
    if (seconds < 1) return "now";
    for (var i = 0; i < units.length; i++) {
      if (seconds >= units[i][1]) return Math.round(seconds / units[i][1]) + " " + units[i][0] + " ago";
    }
    return "now";
  }

  function localTimes() {
    document.querySelectorAll("time[data-time]").forEach(function (one) {
      var at = new Date(one.dateTime);
      var text = at.toLocaleString([], { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
      if (one.textContent !== text) one.textContent = text;
    });
    document.querySelectorAll("time[data-ago]").forEach(function (one) {
      var text = ago((Date.now() - new Date(one.dateTime)) / 1000);
      if (one.textContent !== text) one.textContent = text;
    });
  }

  function live(isLive) {
    var mark = document.getElementById("live");
    if (!mark) return;
    mark.hidden = false;
    mark.classList.toggle("lost", !isLive);
    mark.lastElementChild.textContent = isLive ? "Live" : "Not live since " + new Date(since).toLocaleTimeString([], { hour12: false });
  }

  function selected() {
    var bar = document.querySelector("[data-bulk]");
    if (!bar) return;
    var count = document.querySelectorAll("input[name=run]:checked").length;
    var text = bar.querySelector("[data-selected]");
    text.dataset.none = text.dataset.none || text.textContent;
    text.textContent = count ? count + " selected" : text.dataset.none;
    bar.classList.toggle("some", count > 0);
  }

  document.body.addEventListener("htmx:sseOpen", function () { since = 0; live(true); });
  document.body.addEventListener("htmx:sseError", function () {
    var first = !since;
    since = since || Date.now();
    if (first) setTimeout(function () { if (since) live(false); }, 3000);
  });
  document.body.addEventListener("htmx:afterSettle", function () { localTimes(); selected(); });
  // The order of requests is that of the page: a morph keeps what a person has typed and selected.
  document.body.addEventListener("change", selected);
  setInterval(localTimes, 5000);

  // A filter that is empty is not part of the address.
  document.addEventListener("formdata", function (event) {
    if (event.target.method !== "get") return;
    var fields = event.formData;
    new Set(fields.keys()).forEach(function (name) {
      var kept = fields.getAll(name).filter(Boolean);
      fields.delete(name);
      kept.forEach(function (value) { fields.append(name, value); });
    });
  });

  // ---- keys: none of them approves ----
  var pages = { r: "/", i: "/inbox", a: "/agents", m: "/machines", h: "/health", b: "/backtest", c: "/compare" };
  var pending = false;
  document.addEventListener("keydown", function (event) {
    var typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape" && typing) { event.target.blur(); return; }
    if (typing && event.target.type !== "checkbox") return;
    if (pending && pages[event.key]) { location.href = base + pages[event.key]; return; }
    pending = event.key === "g";
    if (event.key === "?") {
      showKeys();
    } else if (event.key === "/") {
      var search = document.getElementById("search");
      if (search) { search.focus(); search.select(); event.preventDefault(); }
    } else if (event.key === "j" || event.key === "k") {
      move(event.key === "j" ? 1 : -1);
    } else if (event.key === "x") {
      var row = document.activeElement.closest("tr, .wait");
      var box = row && row.querySelector("input[type=checkbox]");
      if (box) { box.checked = !box.checked; selected(); }
    }
  });

  function showKeys() {
    var keys = document.getElementById("keys");
    if (keys && !keys.open) keys.showModal();
  }
  var button = document.getElementById("show-keys");
  if (button) { button.hidden = false; button.addEventListener("click", showKeys); }

  function move(step) {
    var links = Array.prototype.slice.call(document.querySelectorAll("#rows .c-i a, #questions a.q"));
    if (!links.length) return;
    var at = links.indexOf(document.activeElement);
    links[Math.max(0, Math.min(links.length - 1, at < 0 ? 0 : at + step))].focus();
  }

  localTimes();
  selected();
})();
