// The page says everything without this script. It sorts and filters tables, and marks a workload in charts and tables alike.
'use strict'
const number = text => { const m = text.replace(/^[<>] /, '').match(/^[-+]?[\d.]+(?:e[-+]?\d+)?/i); return m ? +m[0] : NaN }

const tables = () => {
  for (const table of document.querySelectorAll('table:not(.facts)')) {
    const rows = [...table.tBodies[0].rows]
    if (rows.length < 3) continue
    ;[...table.tHead.rows[0].cells].forEach((head, i) => {
      const button = document.createElement('button')
      button.type = 'button'
      button.append(...head.childNodes)
      head.append(button)
      button.addEventListener('click', () => {
        const down = head.getAttribute('aria-sort') == 'ascending'
        for (const h of table.tHead.rows[0].cells) h.removeAttribute('aria-sort')
        head.setAttribute('aria-sort', down ? 'descending' : 'ascending')
        const key = r => { const c = r.cells[i], n = number(c.title) || number(c.textContent); return Number.isNaN(n) || !head.classList.contains('r') ? c.textContent : n }
        const all = rows.map(r => [key(r), r]), told = all.filter(([k]) => k !== '-')
        told.sort(([a], [b]) => typeof a == typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a == 'number' ? -1 : 1)
        if (down) told.reverse()
        const order = told.concat(all.filter(([k]) => k === '-'))
        table.tBodies[0].append(...order.map(o => o[1]))
      })
    })
    if (rows.length < 12) continue
    const label = document.createElement('label'), input = document.createElement('input'), count = document.createElement('span')
    label.className = 'filter'
    input.type = 'search'
    input.dataset.of = table.id
    count.setAttribute('role', 'status')
    label.append('Show rows with ', input, ' ', count)
    table.closest('.scroll').before(label)
    input.addEventListener('input', () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean)
      let n = 0
      for (const r of rows) {
        const text = r.textContent.toLowerCase() + ' ' + [...r.cells].map(c => c.textContent.toLowerCase()).join(' ')
        r.hidden = !words.every(w => text.includes(w))
        n += !r.hidden
      }
      count.textContent = words.length ? n + ' of ' + rows.length : ''
    })
  }
}

const select = id => {
  for (const e of document.querySelectorAll('.selected')) e.classList.remove('selected')
  if (id) for (const e of document.querySelectorAll('[data-w]')) if (e.dataset.w == id) e.classList.add('selected')
}
document.addEventListener('click', event => {
  const e = event.target.closest('[data-w]')
  if (e) select(e.classList.contains('selected') ? '' : e.dataset.w)
})

const crosses = () => {
  for (const svg of document.querySelectorAll('svg.chart')) {
    const rule = document.createElementNS('http://www.w3.org/2000/svg', 'path')
    rule.setAttribute('class', 'cross')
    svg.append(rule)
    const marks = [...svg.querySelectorAll('.mark')], plot = svg.querySelector('.plot')
    svg.addEventListener('pointermove', event => {
      const p = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse()), box = plot.getBBox()
      const inside = p.x >= 0 && p.x <= box.width && p.y >= box.y && p.y <= box.y + box.height
      rule.setAttribute('d', inside ? `M0 ${p.y}h${box.width}M${p.x} ${box.y}v${box.height}` : '')
      for (const m of marks) m.classList.toggle('near', Math.abs(m.x.baseVal.value - p.x) < 8)
    })
    svg.addEventListener('pointerleave', () => { rule.setAttribute('d', ''); marks.forEach(m => m.classList.remove('near')) })
  }
}

tables()
crosses()
