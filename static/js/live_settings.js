// Settings from the server: the range, the pool, and the limits and metrics that server and page share.
export const settings = JSON.parse(document.getElementById("settings").textContent);
