package report

import (
	"cmp"
	"fmt"
	"slices"

	"fisub/internal/plain"
	"fisub/internal/ui"
)

// A history shows the newest so many runs, and in its chart so many groups.
const (
	mostPast   = 60
	mostGroups = 4
)

// past is the history as a chart and a table; nil where there are less than two runs.
func (r *Report) past() *history {
	if r.History == nil || len(r.History.Runs) < 2 {
		return nil
	}
	h := r.History
	all := h.Runs[max(0, len(h.Runs)-mostPast):]
	over := "Speed-up over " + clean(h.Of, 60)
	t := table{ID: "history-runs", Caption: over + ", the oldest run first", Head: []column{
		{Text: "Run"}, {Text: "Commit"}, {Text: "All", Right: true, Title: "mean over the workloads"}}}
	if len(all) < len(h.Runs) {
		t.Note = fmt.Sprintf("The newest %d of %d runs.", len(all), len(h.Runs))
	}
	c := &chart{ID: "history-chart", Title: over + ", run by run", XName: "commit of each run, the oldest on the left",
		Desc: fmt.Sprintf("%d runs. The table below has the figures.", len(all))}
	lists := []series{{name: "all workloads"}}
	for _, name := range h.Groups {
		name = clean(name, 80)
		t.Head = append(t.Head, column{Text: name, Right: true})
		lists = append(lists, series{name: name})
	}
	t.Head = append(t.Head, column{Text: "Note"})
	for _, run := range all {
		commit := cmp.Or(clean(run.Commit, 20), "no commit")
		c.Places = append(c.Places, commit)
		row := []cell{{Text: clean(run.ID, 60)}, {Text: clean(run.Commit, 20), Class: "code"}}
		for i, v := range append([]float64{run.Speedup}, run.Groups...) {
			row = append(row, cell{Text: ui.Times(&v), Title: exact(v)})
			lists[i].points = append(lists[i].points, point{value: v, title: fmt.Sprintf("%s, %s, %s: %s", clean(run.ID, 60),
				commit, lists[i].name, ui.Times(&v))})
		}
		t.add(append(row, cell{Text: clean(run.Note, 200)})...)
	}
	t.drop("Commit", "Note")
	if len(lists) == 2 {
		lists = lists[:1] // the only group is all of them
	} else if groups := lists[1:]; len(groups) > mostGroups {
		c.Desc += fmt.Sprintf(" It shows the %d of %s that changed most.", mostGroups, plain.Count(len(groups), "group"))
		c.Title += fmt.Sprintf(", with the %d of %s that changed most", mostGroups, plain.Count(len(groups), "group"))
		lists = append(lists[:1:1], changed(groups)...)
	}
	var drawn []series
	for i := range lists {
		s := &lists[i]
		s.class, s.shape, s.hollow = fmt.Sprintf("run%d", i%len(shapes)), shapes[i%len(shapes)], i >= len(shapes)
	}
	drawn = append(drawn, series{name: "mean of all workloads", class: "mean", points: lists[0].points})
	c.draw("", append(drawn, lists...), func(v float64) string { return trim(v) + "x" }, 1)
	if len(c.Pictures) == 0 {
		return nil
	}
	return &history{c, t}
}

// changed gives the mostGroups of the groups whose largest value is the furthest from the least, in their order.
func changed(groups []series) (most []series) {
	change := func(s series) float64 {
		by := func(a, b point) int { return cmp.Compare(a.value, b.value) }
		return slices.MaxFunc(s.points, by).value / slices.MinFunc(s.points, by).value
	}
	order := make([]int, len(groups))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(change(groups[b]), change(groups[a])) })
	order = order[:mostGroups]
	slices.Sort(order)
	for _, i := range order {
		most = append(most, groups[i])
	}
	return most
}
