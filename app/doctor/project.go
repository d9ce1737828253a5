package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"fisub/internal/config"
	"fisub/internal/plain"
	"fisub/remote/providers"
)

func (x *examination) config(context.Context) []Probe {
	cfg, err := config.Load(x.Config)
	if err == nil {
		return []Probe{ok("config", "%s: %s, %s", x.Config, cfg.Solution.Name, cfg.Solution.Definition)}
	}
	hint := "fisub check lists the errors"
	if errors.Is(err, fs.ErrNotExist) {
		hint = "run fisub in the submission's folder, or use -C DIR"
	}
	return []Probe{missing("config", err.Error()+"; every command about a submission needs it", hint)}
}

func (x *examination) dataset(context.Context) []Probe {
	if x.Dataset == nil {
		return nil
	}
	const hint = "set --dataset DIR or FIB_DATASET_PATH; without them the embedded dataset is used"
	data, err := x.Dataset()
	if err != nil {
		return []Probe{failed("dataset", err, hint)}
	}
	names := data.Definitions()
	if len(names) == 0 {
		return []Probe{missing("dataset", fmt.Sprintf("%s: no definitions below %s", data.Root(),
			filepath.Join(data.Root(), "definitions")), hint)}
	}
	where := data.Root()
	if data.Embedded() {
		where = "embedded"
	}
	return []Probe{ok("dataset", "%s: %s", where, plain.Count(len(names), "definition"))}
}

// remote checks the hosts of one table.
func (x *examination) remote(ctx context.Context, table string) (lines []Probe) {
	name, again := "remote."+table, "fisub remote hosts --on "+table+" checks again"
	p, common, err := providers.Open(x.Tables, table, "")
	if err != nil {
		l := failed(name, err, "fisub help remote lists the keys of such a table")
		l.Fact = err.Error() // without excerpts
		return []Probe{l}
	}
	defer p.Close()
	hosts, err := p.Check(ctx)
	if err == nil && len(hosts) == 0 {
		err = errors.New("no hosts")
	}
	if err != nil {
		return []Probe{failed(name, err, again)}
	}
	for _, h := range hosts {
		host := name
		if len(hosts) > 1 {
			host += "." + h.Name
		}
		if h.Err != nil {
			lines = append(lines, failed(host, h.Err, again))
			continue
		}
		l := ok(host, "%s", strings.TrimSuffix(fmt.Sprintf("%s, %s: %s, %s", common.Provider, h.Name, h.State, h.Detail),
			", "))
		if h.State == "down" || h.State == "busy" {
			l.State = Warn
		}
		lines = append(lines, l)
	}
	return lines
}
