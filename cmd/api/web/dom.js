// SPDX-License-Identifier: Apache-2.0

// Elements. All text is put in as text: nothing that comes from the agent is HTML.

const svgNamespace = "http://www.w3.org/2000/svg";

// h returns an element of HTML. Properties that begin with "on" are listeners,
// others attributes: true is an empty one, false, null and undefined none.
export function h(tag, properties, ...children) {
  return build(document.createElement(tag), properties, children);
}

// s returns an element of SVG.
export function s(tag, properties, ...children) {
  return build(document.createElementNS(svgNamespace, tag), properties, children);
}

function build(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else setAttribute(element, name, value);
  }
  element.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

// setAttribute sets an attribute, or removes it.
export function setAttribute(element, name, value) {
  if (value === false || value === null || value === undefined) element.removeAttribute(name);
  else element.setAttribute(name, value === true ? "" : value);
}

// setText sets the text of an element unless it is that already: what reads the
// page aloud would say it again.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// arrange makes some elements the children of another one, in order. Those that
// are in place stay untouched, with the focus that they may have.
export function arrange(parent, children) {
  let next = parent.firstChild;
  for (const child of children) {
    if (child === next) next = next.nextSibling;
    else parent.insertBefore(child, next);
  }
  while (next) {
    const gone = next;
    next = next.nextSibling;
    gone.remove();
  }
}

const announcer = document.getElementById("announcer");
let announced = 0;

// announce has a sentence read aloud. Of many at once only the last one is.
export function announce(text) {
  clearTimeout(announced);
  announced = setTimeout(() => setText(announcer, text), 500);
}

// count is a number with its noun.
export function count(n, one, many = one + "s") {
  return `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
}
