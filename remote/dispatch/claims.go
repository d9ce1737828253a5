package dispatch

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"fisub/bench/bound"
	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/remote/agent"
	"fisub/runs"
)

// maxSkew is how far a host's dates may lie before the beginning of the run or after the client's clock. The
// timestamps of traces have no time zone, which is worth 14 hours.
const maxSkew = 48 * time.Hour

// traceTime is the format of a trace's timestamp.
const traceTime = "2006-01-02T15:04:05.999999"

// against returns how an event of a job contradicts what the client knows, or "". begun is set if the job has sent a
// run event before.
func (m *merger) against(r *reader, e *event.Event, begun bool) string {
	if text := m.misdated(e.Time); text != "" {
		return text
	}
	switch {
	case e.Run != nil && begun:
		return "a second run event"
	case e.Run != nil:
		return m.otherRun(r, e.Run)
	case e.Evaluated != nil:
		return m.otherTrace(r, e)
	case e.Samples != nil && e.Samples.Bytes < m.least[e.Workload].Read+m.least[e.Workload].Written:
		least := m.least[e.Workload]
		return fmt.Sprintf("%d bytes for workload %s, which has at least %d", e.Samples.Bytes, e.Workload,
			least.Read+least.Written)
	}
	return ""
}

// misdated returns a text if a host's date is far from the client's clock. A zero date is none.
func (m *merger) misdated(date time.Time) string {
	early := !m.run.Started.IsZero() && date.Before(m.run.Started.Add(-maxSkew))
	late := !m.now.IsZero() && date.After(m.now.Add(maxSkew))
	if date.IsZero() || !early && !late {
		return ""
	}
	return fmt.Sprintf("dated %s, but the run began at %s and it is %s", date.UTC().Format(time.RFC3339),
		m.run.Started.UTC().Format(time.RFC3339), m.now.UTC().Format(time.RFC3339))
}

// otherRun compares a host's run event with the run and the job.
func (m *merger) otherRun(r *reader, is *event.Run) string {
	if what, ours, theirs := runs.Differ(&m.run, is); what != "" {
		return fmt.Sprintf("the host's %s is %s, but the run's is %s", what, plain.Brief(theirs, 200), plain.Brief(ours, 200))
	}
	base := func(b *event.Baseline) string {
		if b == nil {
			return "none"
		}
		return strings.TrimSpace(b.Solution + " " + plain.Short(b.ContentHash)) // the name is a path on the host
	}
	if ours, theirs := base(m.run.Baseline), base(is.Baseline); ours != theirs {
		return fmt.Sprintf("the host's baseline is %s, but the run's is %s", plain.Brief(theirs, 200), plain.Brief(ours, 200))
	}
	if n, want := len(is.Workloads), len(r.job.Workloads); n != want {
		return fmt.Sprintf("the host lists %s, but the job has %d", plain.Count(n, "workload"), want)
	}
	for i, w := range is.Workloads {
		twice := slices.ContainsFunc(is.Workloads[:i], func(v event.WorkloadRef) bool { return v.UUID == w.UUID })
		if twice || !slices.Contains(r.job.Workloads, w.UUID) {
			return fmt.Sprintf("the host lists workload %s, which is not one of the job's, or lists it twice",
				plain.Brief(w.UUID, 100))
		}
	}
	if text := m.otherDevice(is.Device); text != "" {
		return text
	}
	return m.misdated(is.Started)
}

// otherDevice returns a text if a host's device is not of the kind that the run is for.
func (m *merger) otherDevice(d event.Device) string {
	want, is := "GPU "+m.gpu, plain.Brief(d.Name, 200)
	if d.Emulated {
		is = "the virtual GPU"
	}
	if m.gpu == "" {
		want = "the virtual GPU"
	}
	gpu := agent.GPU{Name: d.Name}
	if d.Emulated != (m.gpu == "") || m.gpu != "" && !gpu.Is(m.gpu) {
		return fmt.Sprintf("the host's device is %s, but the run is for %s", is, want)
	}
	return ""
}

// otherTrace compares a trace with the run.
func (m *merger) otherTrace(r *reader, e *event.Event) string {
	t := e.Evaluated.Trace
	solution := ""
	if t.Solution != nil {
		solution = *t.Solution
	}
	device := event.Device{}
	if r.summary.Run != nil {
		device = r.summary.Run.Device
	}
	for _, f := range []struct{ what, ours, theirs string }{
		{"definition", m.run.Definition, t.Definition}, {"solution", m.run.Solution, solution},
		{"hardware", device.Hardware(), t.Evaluation.Environment.Hardware},
	} {
		if f.ours != f.theirs {
			return fmt.Sprintf("a trace with %s %s, but the run's is %s", f.what, plain.Brief(f.theirs, 200),
				plain.Brief(f.ours, 200))
		}
	}
	for _, w := range m.run.Workloads {
		if axes := maps.Collect(t.Workload.Axes.All()); w.UUID == e.Workload && w.Axes != nil && !maps.Equal(axes, w.Axes) {
			return fmt.Sprintf("a trace of workload %s with axes %v, but the run's are %v", w.UUID, axes, w.Axes)
		}
	}
	date, _ := time.Parse(traceTime, t.Evaluation.Timestamp) // other texts give no date
	return m.misdated(date)
}

// tooFast returns the finding for the official latency of a verdict that has been emitted, or nil. It uses neither the
// bytes nor the bandwidth that the host claims.
func (m *merger) tooFast(uuid string) *event.Finding {
	row := m.summary.Row(uuid)
	if row == nil || row.Evaluated == nil || row.Evaluated.Latency() == nil || isTooFast(row) {
		return nil
	}
	ns := *row.Evaluated.Latency() * 1e6
	if row.Samples != nil && row.Samples.MedianNS > 0 {
		ns = min(ns, row.Samples.MedianNS)
	}
	return bound.Check(ns, m.least[uuid], bound.Card(m.gpu))
}

func isTooFast(row *runs.Row) bool {
	return slices.ContainsFunc(row.Findings, func(f event.Finding) bool { return f.Check == bound.TooFast })
}
