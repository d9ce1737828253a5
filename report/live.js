
// A page that is served takes the newer one in as soon as it is told of it. What the reader has opened, sorted, filtered and
// marked stays so. While text is selected the page waits.
const root = document.documentElement
let newest = root.dataset.live, renewing = false

const renew = async () => {
  if (renewing || newest == root.dataset.live) return
  if (String(getSelection())) return void setTimeout(renew, 1000)
  renewing = true
  const wanted = newest
  try {
    const next = new DOMParser().parseFromString(await (await fetch(location.pathname)).text(), 'text/html')
    const touched = 'a, button, input, summary, .scroll, pre', active = document.activeElement, home = active.closest('[id]')
    const kept = {
      focus: home && active.matches(touched) ? [home.id, [...home.querySelectorAll(touched)].indexOf(active)] : null,
      details: [...document.querySelectorAll('details[id]')].map(d => [d.id, d.open]),
      sorted: [...document.querySelectorAll('th[aria-sort]')].map(h => [h.closest('table').id, h.cellIndex, h.getAttribute('aria-sort')]),
      filters: [...document.querySelectorAll('.filter input')].map(i => [i.dataset.of, i.value]),
      across: [...document.querySelectorAll('.scroll')].map(s => [s.firstElementChild.id, s.scrollLeft]),
      selected: document.querySelector('.selected')?.dataset.w, down: scrollY}
    const script = document.querySelector('script')
    for (const e of [...document.body.children]) if (e != script) e.remove()
    for (const e of [...next.body.children]) if (e.tagName != 'SCRIPT') script.before(document.adoptNode(e))
    document.title = next.title
    root.dataset.live = next.documentElement.dataset.live
    if (newest == wanted) newest = root.dataset.live // which may be newer than what was wanted
    tables()
    crosses()
    const at = id => document.getElementById(id)
    for (const [id, open] of kept.details) if (at(id)) at(id).open = open
    for (const [id, i, how] of kept.sorted) for (let n = how == 'ascending' ? 1 : 2; n > 0; n--) at(id)?.tHead.rows[0].cells[i]?.querySelector('button')?.click()
    for (const input of document.querySelectorAll('.filter input')) {
      input.value = kept.filters.find(([id]) => id == input.dataset.of)?.[1] || ''
      input.dispatchEvent(new Event('input'))
    }
    for (const [id, left] of kept.across) if (at(id)) at(id).parentElement.scrollLeft = left
    select(kept.selected)
    if (kept.focus) at(kept.focus[0])?.querySelectorAll(touched)[kept.focus[1]]?.focus({preventScroll: true})
    scrollTo({top: kept.down, behavior: 'instant'})
  } catch {
    return // the events tell that nobody answers any more, or tell the stamp again
  } finally {
    renewing = false
  }
  renew()
}

const events = new EventSource('events')
const say = text => { document.querySelector('[role=status].live').textContent = text }
events.onopen = () => say('live')
events.onerror = () => say('no longer live: fisub report --serve does not answer')
events.onmessage = event => {
  newest = event.data
  renew()
}
