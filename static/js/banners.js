// Banners: one line per problem. A screen reader announces a problem once, without its countdown.
const region = document.getElementById("banners");

export function show(kind, level, text, ticking = "") {
  if (!region) return;
  let banner = region.querySelector(`[data-kind="${kind}"]`);
  if (!banner) {
    banner = document.createElement("p");
    banner.dataset.kind = kind;
    banner.append(document.createElement("span"), document.createElement("span"));
    banner.lastChild.setAttribute("aria-hidden", "true");
    banner.lastChild.className = "number";
    region.append(banner);
  }
  banner.className = `banner banner--${level}`;
  if (banner.firstChild.textContent !== text) banner.firstChild.textContent = text;
  banner.lastChild.textContent = ticking;
}

export function hide(kind) {
  region?.querySelector(`[data-kind="${kind}"]`)?.remove();
}

export function toggle(wanted, kind, level, text, ticking) {
  if (wanted) show(kind, level, text, ticking);
  else hide(kind);
}
