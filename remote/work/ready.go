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

// self is the hash of this program, which is the agent of the jobs that it sends; "" where it cannot be read.
var self = sync.OnceValue(func() string {
	path, err := os.Executable()
	if err != nil {
		return ""
	}
	f, err := remote.FileAt(path)
	if err != nil {
		return ""
	}
	return f.SHA256
})

// looking asks the agent $1 for the host's GPUs, where it is there, and nvidia-smi, a fact in each line.
const looking = `if [ -s "$1" ] && [ -x "$1" ]; then
if out=$("$1" agent look 2>&1); then printf 'agent %s\n' "$out"; else printf 'fault %s\n' "$out"; fi; fi
command -v nvidia-smi >/dev/null || exit 0
nvidia-smi --query-gpu=uuid,name,driver_version --format=csv,noheader 2>/dev/null | while read -r line; do
echo "gpu $line"; lock=/tmp/fisub-${line%%,*}.lock
[ ! -e "$lock" ] || ! command -v flock >/dev/null || flock -sn "$lock" true || echo "held ${line%%,*}"; done
nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name --format=csv,noheader 2>/dev/null | sed 's/^/app /'; true`

// GPUs gives the GPUs of the host as the agent with that hash sees them, or, where that is not there, as nvidia-smi
// does, and how they are called. The error is a *remote.Denied where there is none, or nobody knows.
func (f *Folder) GPUs(ctx context.Context, facts *Facts, program string) (gpus []agent.GPU, called string, err error) {
	out := &plain.Buffer{Limit: 1 << 20}
	if err := shell(ctx, f.Host, looking, []string{agent.Stored(facts.Root, program)}, nil, out); err != nil {
		return nil, "", err
	}
	none := &remote.Denied{Code: "no-driver", Text: "no NVIDIA GPU: there is no nvidia-smi",
		Hint: "install the NVIDIA driver on the host; nvidia-smi shows what it sees"}
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
			of(func(g *agent.GPU) { g.Holder = "its lock is held" })
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

// Ready tells whether a job for that kind of GPU, "" for none, could run now on one of the GPUs with those ordinals, by
// what the agent itself would say. It makes nothing there. The state is "ready", "busy", or "down" with an error.
func (f *Folder) Ready(ctx context.Context, kind string, ordinals []int) (state, detail string, err error) {
	facts, err := f.See(ctx)
	if err == nil && f.Check != nil {
		err = f.Check(facts)
	}
	if err == nil && facts.Free > 0 && facts.Free < room {
		err = full(facts, fmt.Sprintf("a job takes %d MB", room>>20))
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

// fits refuses a job whose GPU cannot be one of this host's, before its files are sent. What only the agent can know is
// its to say.
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
