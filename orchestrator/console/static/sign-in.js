// The part of an address after # is not sent: the terminal's link carries the code there, and it leaves the history.
(function () {
  "use strict";
  var token = location.hash.slice(1);
  if (!token) return;
  history.replaceState(null, "", location.pathname);
  document.querySelector("input[name=token]").value = token;
  document.querySelector("form").submit();
})();
