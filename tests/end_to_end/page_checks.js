// What is wrong with a page, in words, for test_pages_in_a_browser.py; an empty list is a good page.
() => {
  const found = [];
  const say = (what, element) =>
    found.push(`${what}: <${element.tagName.toLowerCase()}> ${element.textContent.trim().slice(0, 40)}`);
  const shown = (element) => element.checkVisibility() && element.getClientRects().length;
  const wide = document.documentElement.clientWidth;

  if (document.documentElement.scrollWidth > wide) found.push("the page is wider than the screen");
  for (const cell of document.querySelectorAll("tbody th, td, dd, code, figcaption, h1, h2")) {
    const box = cell.getBoundingClientRect();
    if (shown(cell) && (box.left < 0 || box.right > wide + 0.5)) say("off the screen", cell);
    if (shown(cell) && cell.scrollWidth > cell.clientWidth + 1 && cell.clientWidth) say("cut", cell);
  }
  // A cell whose column heading cannot be seen says itself what it is.
  for (const table of document.querySelectorAll("table")) {
    const heads = table.tHead.getBoundingClientRect().height > 5;
    for (const cell of table.querySelectorAll("td"))
      if (!heads && shown(cell) && !getComputedStyle(cell, "::before").content.includes(cell.dataset.label))
        say("without its heading", cell);
      else if (!heads && shown(cell) && !/flex|grid/.test(getComputedStyle(cell).display))
        say("touches its heading", cell);
  }

  let level = 0;
  for (const heading of document.querySelectorAll("h1, h2, h3, h4")) {
    const own = Number(heading.tagName[1]);
    if (own > level + 1 || (own === 1) !== (level === 0)) say("heading out of order", heading);
    level = own;
  }

  for (const svg of [...document.querySelectorAll("svg")].filter(shown)) {
    const image = svg.closest("[role=img]");
    const text = (name) =>
      (image?.getAttribute(name) ?? "").split(" ").map((id) => document.getElementById(id)?.textContent ?? "").join("");
    if (!text("aria-labelledby").trim()) say("figure without a name", svg);
    if (!/\d/.test(text("aria-describedby"))) say("figure without figures in words", svg);
    const frame = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll("text")].map((element) => [element, element.getBoundingClientRect()]);
    texts.forEach(([element, box], index) => {
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
        say("cut at the figure's edge", element);
      if (box.height < 9) say("too small to read", element);
      for (const [other, its] of texts.slice(index + 1)) {
        const across = Math.min(box.right, its.right) - Math.max(box.left, its.left);
        const down = Math.min(box.bottom, its.bottom) - Math.max(box.top, its.top);
        // Boxes of lines that follow each other share the space below their letters.
        if (across > 0 && down > 0.4 * Math.min(box.height, its.height)) say(`over "${other.textContent}"`, element);
      }
    });
  }

  // WCAG 2.2, 1.4.3 and 1.4.11.
  const channels = (colour) => colour.match(/[\d.]+/g).map(Number);
  const luminance = (colour) => {
    const [r, g, b] = channels(colour).slice(0, 3).map((value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = getComputedStyle(each).backgroundColor;
      if ((channels(colour)[3] ?? 1) === 1) return colour;
    }
    return matchMedia("(prefers-color-scheme: dark)").matches ? "rgb(0, 0, 0)" : "rgb(255, 255, 255)";
  };
  const contrast = (one, other) => {
    const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  const lines = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (lines.nextNode()) {
    const element = lines.currentNode.parentElement;
    if (!lines.currentNode.textContent.trim() || !shown(element)) continue;
    const style = getComputedStyle(element);
    const colour = element.closest("svg") ? style.fill : style.color;
    if (contrast(colour, behind(element)) < 4.5) say(`contrast of ${colour}`, element);
  }
  for (const path of document.querySelectorAll("svg path")) {
    const { stroke, clipPath } = getComputedStyle(path);
    const drawn = shown(path) && path.closest("[clip-path]") && stroke !== "none" && Number(getComputedStyle(path).strokeWidth.replace("px", "")) > 1;
    if (drawn && contrast(stroke, behind(path)) < 3) say(`contrast of the line ${stroke}`, path);
  }
  return found;
}
