package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"fisub/explain"
	"fisub/internal/config"
	"fisub/internal/plain"
	"fisub/internal/safetensors"
	"fisub/remote/providers"
	"fisub/workloads"
)

func (x *examination) config(context.Context) Line {
	cfg, err := config.Load(x.Config)
	if err == nil {
		return ok("config", "%s: %s, %s", x.Config, cfg.Solution.Name, cfg.Solution.Definition)
	}
	hint := "fisub check says what is wrong with it"
	if errors.Is(err, fs.ErrNotExist) {
		hint = "go to the folder of the submission, or name it: -C DIR"
	}
	return missing("config", err.Error()+"; every command about a submission needs it", hint)
}

// A tally is what there is of a dataset and its input files.
type tally struct {
	sets, workloads, absent, faults, missing, pointers int
	pointer                                            string // a file that Git LFS left as one
}

// count adds the workload sets of a definition.
func (t *tally) count(ctx context.Context, data *workloads.Dataset, name string) error {
	def, err := data.Definition(name)
	if err != nil {
		return err
	}
	sets, err := data.Sets(name)
	if err != nil {
		return err
	}
	for _, set := range sets {
		ws, err := data.Workloads(name, set)
		if err != nil {
			return err
		}
		reports, err := data.Verify(ctx, def, ws)
		if err != nil {
			return err
		}
		t.sets++
		for _, r := range reports {
			t.workloads++
			t.absent += r.Absent
			for _, f := range r.Faults {
				var lfs *safetensors.LFSPointerError
				switch {
				case errors.As(f, &lfs):
					t.pointers++
					t.pointer = lfs.Path
				case errors.Is(f, fs.ErrNotExist):
					t.missing++
				default:
					t.faults++
				}
			}
		}
	}
	return nil
}

func (x *examination) dataset(ctx context.Context) Line {
	const hint = "--dataset DIR or FIB_DATASET_PATH names one; without them the embedded one is taken"
	data, err := x.Dataset()
	if err != nil {
		return failed("dataset", err, hint)
	}
	names := data.Definitions()
	if len(names) == 0 {
		return missing("dataset", fmt.Sprintf("%s: no definitions below %s", data.Root(), filepath.Join(data.Root(),
			"definitions")), hint)
	}
	var t tally
	for _, name := range names {
		err := t.count(ctx, data, name)
		if ctx.Err() != nil {
			return warn("dataset", data.Root()+": looking at its input files takes too long",
				"fisub dataset verify takes the time")
		}
		if err != nil {
			return failed("dataset", err, hint)
		}
	}
	where := data.Root()
	if data.Embedded() {
		where = "embedded"
	}
	l := ok("dataset", "%s: %s, %s in %s", where, plain.Count(len(names), "definition"), plain.Count(t.workloads,
		"workload"), plain.Count(t.sets, "set"))
	if t.absent > 0 {
		l.Fact += fmt.Sprintf(", %s made when needed", plain.Count(t.absent, "input file"))
	}
	for _, f := range []struct {
		n                int
		text, more, hint string
	}{
		{t.faults, "fault", "", "fisub dataset verify names them"},
		{t.missing, "input file", " missing", "fisub dataset synth makes them, or fetch them: git lfs pull"},
		{t.pointers, "Git LFS pointer", " in place of input files", "fetch them: " + explain.LFSCommand(t.pointer)},
	} {
		if f.n > 0 {
			l.State, l.Hint = Warn, f.hint
			l.Fact += ", " + plain.Count(f.n, f.text) + f.more
		}
	}
	return l
}

// remote asks the hosts of one table.
func (x *examination) remote(ctx context.Context, table string) []Line {
	name := "remote." + table
	bad := func(name string, err error, hint string) []Line {
		l := failed(name, err, hint)
		if ctx.Err() != nil {
			l.Fact = "no answer in time"
		}
		return []Line{l}
	}
	again := "fisub remote hosts --on " + table + " asks again"
	p, common, err := providers.Open(x.Tables, table, "")
	if err != nil {
		l := bad(name, err, "docs/remote.md has the keys of such a table")
		l[0].Fact = err.Error() // without excerpts
		return l
	}
	defer p.Close()
	hosts, err := p.Check(ctx)
	if err != nil {
		return bad(name, err, again)
	}
	var lines []Line
	for _, h := range hosts {
		host := name
		if len(hosts) > 1 {
			host += "." + h.Name
		}
		if h.Err != nil {
			lines = append(lines, bad(host, h.Err, again)...)
			continue
		}
		l := ok(host, "%s", strings.TrimSuffix(fmt.Sprintf("%s, %s: %s, %s", common.Provider, h.Name, h.State, h.Detail),
			", "))
		if h.State == "down" || h.State == "busy" {
			l.State = Warn
		}
		lines = append(lines, l)
	}
	if len(lines) == 0 {
		return bad(name, errors.New("it names no host"), again)
	}
	return lines
}
