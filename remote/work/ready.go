package work

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"fisub/internal/plain"
	"fisub/remote"
	"fisub/remote/agent"
)

// self returns the hash of this program, the agent of its jobs; "" if it cannot be read.
var self = sync.OnceValue(func() string {
	path, _ := os.Executable()
	if f, err := remote.FileAt(path); err == nil {
		return f.SHA256
	}
	return ""
})

// looking prints the host's GPUs, a fact on each line, as seen by the agent $1, if it is there, and nvidia-smi.
const looking = `if [ -s "$1" ] && [ -x "$1" ]; then
if out=$("$1" agent look 2>&1); then printf 'agent %s\n' "$out"; else printf 'fault %s\n' "$out"; fi; fi
command -v nvidia-smi >/dev/null || exit 0
nvidia-smi --query-gpu=uuid,name,driver_version --format=csv,noheader 2>/dev/null | while read -r line; do
echo "gpu $line"; lock=/tmp/fisub-${line%%,*}.lock
[ ! -e "$lock" ] || ! command -v flock >/dev/null || flock -sn "$lock" true || echo "held ${line%%,*}"; done
nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name --format=csv,noheader 2>/dev/null | sed 's/^/app /'; true`

// GPUs returns the GPUs of the host and a description of them. It asks the agent with the hash program, or nvidia-smi
// if the host does not have that. The error is a *remote.Denied if no GPU is found.
func (f *Folder) GPUs(ctx context.Context, facts *Facts, program string) (gpus []agent.GPU, called string, err error) {
	out := &plain.Buffer{Limit: 1 << 20}
	if err := shell(ctx, f.Host, looking, []string{agent.Stored(facts.Root, program)}, nil, out); err != nil {
		return nil, "", err
	}
	none := &remote.Denied{Code: "no-driver", Text: "no NVIDIA GPU: no nvidia-smi",
		Hint: "install the NVIDIA driver on the host; nvidia-smi lists its GPUs"}
	var own []agent.GPU
	asked := false
	for line := range strings.Lines(out.String()) {
		word, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		fields := strings.SplitN(value, ", ", 3)
		of := func(do func(*agent.GPU)) {
			for i := range gpus {
				if gpus[i].UUID == fields[0] {
					do(&gpus[i])
				}
			}
		}
		switch {
		case word == "agent":
			asked = json.Unmarshal([]byte(value), &own) == nil
		case word == "fault":
			none.Text = plain.Brief(strings.TrimPrefix(value, "fisub: "), 300)
		case word == "gpu" && len(fields) == 3:
			if called == "" {
				called = ", driver " + plain.Brief(fields[2], 50)
			}
			gpus = append(gpus, agent.GPU{UUID: fields[0], Name: plain.Brief(fields[1], 100)})
		case word == "app" && len(fields) == 3:
			of(func(g *agent.GPU) { g.Processes = append(g.Processes, plain.Brief(fields[1]+" ("+fields[2]+")", 100)) })
		case word == "held":
			of(func(g *agent.GPU) { g.Holder = "locked" })
		}
	}
	if asked {
		gpus = own
	}
	if len(gpus) == 0 || !asked && strings.HasPrefix(none.Text, "no GPU") {
		return nil, "", none
	}
	return gpus, fmt.Sprintf("%d x %s%s", len(gpus), plain.Brief(gpus[0].Name, 100), called), nil
}

// Ready reports whether a job for that kind of GPU ("" for none) could start now on one of the GPUs with those
// ordinals. It applies the agent's rules and creates nothing on the host. The state is "ready", "busy", or "down" with
// an error.
func (f *Folder) Ready(ctx context.Context, kind string, ordinals []int) (state, detail string, err error) {
	facts, err := f.Inspect(ctx)
	if err == nil && f.Check != nil {
		err = f.Check(facts)
	}
	if err == nil && facts.Free > 0 && facts.Free < room {
		err = full(facts, fmt.Sprintf("a job needs %d MB", room>>20))
	}
	if err != nil {
		return "down", "", err
	}
	free := fmt.Sprintf(", %.1f GB free in %s", float64(facts.Free)/1e9, facts.Root)
	gpus, called, err := f.GPUs(ctx, facts, self())
	if kind == "" && (err == nil || errors.As(err, new(*remote.Denied))) {
		if err != nil {
			called = "no NVIDIA GPU"
		}
		return "ready", called + free, nil
	}
	if err != nil {
		return "down", "", err
	}
	state = "down"
	var first *agent.Refusal
	for _, at := range ordinals {
		switch r := agent.Judge(gpus, max(at, 0), kind, false); {
		case r == nil:
			state = "ready"
		default:
			if r.Busy && state == "down" {
				state = "busy"
			}
			if first == nil || r.Busy && !first.Busy {
				first = r
			}
			called += ", " + r.Text
		}
	}
	if state == "down" {
		return state, "", unfit(first)
	}
	return state, called + free, nil
}

func unfit(r *agent.Refusal) error {
	return &remote.Denied{Code: "no-such", Text: r.Text, Hint: r.Hint}
}

// fits rejects a job that certainly has no suitable GPU on this host, before its files are sent.
func (f *Folder) fits(ctx context.Context, facts *Facts, job *remote.Job, program string) error {
	if job.GPU == "" {
		return nil
	}
	gpus, _, err := f.GPUs(ctx, facts, program)
	if err != nil && remote.CodeOf(err) == "" {
		return err
	}
	if r := agent.Judge(gpus, max(job.Place.GPU, 0), job.GPU, true); len(gpus) > 0 && r != nil && !r.Busy {
		return unfit(r)
	}
	return nil
}
