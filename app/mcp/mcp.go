// Package mcp serves fisub to an agent over the Model Context Protocol. Each tool runs a command and returns its JSON
// output. The package itself only restricts which paths a call may name.
package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fisub/internal/event"
	"fisub/internal/plain"
)

// A Call runs fisub with args, sends the events of runs to listener, and returns the output and the exit status.
type Call func(ctx context.Context, args []string, listener event.Sink) (stdout, stderr string, status int)

// Serve serves the project in the folder root over in and out until the client disconnects or ctx is done. Calls that
// run solutions wait for each other: timed kernels must not overlap.
func Serve(ctx context.Context, root, version string, call Call, in io.Reader, out io.Writer) error {
	s := &server{Server: mcp.NewServer(&mcp.Implementation{Name: "fisub", Version: version}, &mcp.ServerOptions{
		Instructions: "fisub checks, runs and judges a GPU kernel submission for the FlashInfer kernel contest. Edit the " +
			"sources, then call check, then local, then sanitize; compare measures whether a change is faster. Paths are " +
			"relative to the project's folder. AGENTS.md, which init writes, describes the contract and the loop.",
		Capabilities: &mcp.ServerCapabilities{}}), root: root, call: call, device: make(chan struct{}, 1)}
	add(s, "init", "write the files of a new submission into the project's folder", func(in struct {
		Definition string `json:"definition" jsonschema:"such as gdn_decode_qk4_v8_d128_k_last"`
		Language   string `json:"language,omitempty" jsonschema:"cuda, triton, ...; default cuda"`
		Author     string `json:"author,omitempty"`
		Name       string `json:"name,omitempty" jsonschema:"of the solution"`
	}) words {
		return words{"init", ".", "--json"}.flag("definition", in.Definition).flag("language", in.Language).
			flag("author", in.Author).flag("name", in.Name)
	})
	add(s, "check", "check the submission without running it; needs no GPU", func(in struct {
		Arch   string `json:"arch,omitempty" jsonschema:"such as sm_100, or none; default sm_100 if there is a toolchain"`
		Strict bool   `json:"strict,omitempty" jsonschema:"treat warnings as errors"`
	}) words {
		return words{"check", "--json=final"}.flag("arch", in.Arch).yes("strict", in.Strict)
	})
	add(s, "local", "run workloads on this machine's GPU, or on the virtual GPU, which judges but does not time",
		func(in struct {
			selection
			Baseline string `json:"baseline,omitempty" jsonschema:"also time this solution; reference gives the contest's score"`
			Resume   string `json:"resume,omitempty" jsonschema:"run to continue"`
			Budget   string `json:"budget,omitempty" jsonschema:"start no workload after this time, such as 30s"`
			FailFast bool   `json:"fail_fast,omitempty" jsonschema:"stop at the first workload that does not pass"`
			Strict   bool   `json:"strict,omitempty" jsonschema:"findings of the honesty checks count as failures"`
		}) words {
			return in.flags(words{"local", "--json=final"}).flag("baseline", in.Baseline).flag("resume", in.Resume).
				flag("budget", in.Budget).yes("fail-fast", in.FailFast).yes("strict", in.Strict)
		})
	add(s, "compare", "compare B with A, two runs, two profiles or two solutions (which are run now): faster, slower or "+
		"the same; on the virtual GPU, more or less of what counts",
		func(in compareInput) words {
			return in.flags(words{"compare", in.A}.argument(in.B).argument("--json=final").flag("define", in.Define...))
		})
	add(s, "sanitize", "look for invalid accesses, races, uninitialised reads and bad barriers, on each shape of inputs",
		func(in struct {
			Device   string `json:"device,omitempty" jsonschema:"auto, cuda, cuda:N or emu"`
			Set      string `json:"set,omitempty"`
			Workload string `json:"workload,omitempty" jsonschema:"beginning of the uuid; default: one of each shape"`
			Tool     string `json:"tool,omitempty" jsonschema:"memcheck,racecheck,initcheck,synccheck, or some of them"`
		}) words {
			return words{"sanitize", "--json=final"}.flag("device", in.Device).flag("set", in.Set).
				flag("workload", in.Workload).flag("tool", in.Tool)
		})
	add(s, "remote", "run workloads on hosts with GPUs, which may cost money: without yes, only return the plan",
		func(in struct {
			GPU string `json:"gpu,omitempty" jsonschema:"of the hosts, such as b200; none is the virtual GPU"`
			On  string `json:"on,omitempty" jsonschema:"table [remote.NAME] of config.toml; default: the only one"`
			choice
			Baseline string `json:"baseline,omitempty" jsonschema:"also time this solution; reference gives the contest's score"`
			Strict   bool   `json:"strict,omitempty" jsonschema:"findings of the honesty checks count as failures"`
			Yes      bool   `json:"yes,omitempty" jsonschema:"start the run, even if it costs money; default: return the plan"`
		}) words {
			w := in.choice.flags(words{"remote", "--json=final"}.flag("gpu", in.GPU).flag("on", in.On)).
				flag("baseline", in.Baseline).yes("strict", in.Strict)
			return w.yes("yes", in.Yes).yes("dry-run", !in.Yes)
		})
	add(s, "pack", "write solution.json as the contest's packer does", func(in packInput) words {
		return words{"pack", "--json=final"}.yes("packed", in.Packed)
	})
	add(s, "submit", "list the missing steps to the contest's tag; changes nothing",
		func(in struct {
			Untested bool `json:"untested,omitempty" jsonschema:"do not require a passed run on a GPU"`
		}) words {
			return words{"submit", "--dry-run", "--json=final"}.yes("untested", in.Untested)
		})
	add(s, "dataset_show", "show a definition: shapes, constraints, tolerance, workload sets, reference",
		func(in struct {
			Definition string `json:"definition,omitempty" jsonschema:"default: the project's"`
		}) words {
			return words{"dataset", "show", "--json"}.argument(in.Definition)
		})
	add(s, "doctor", "check which commands work on this machine, and what the others need", func(in struct {
		Remote bool `json:"remote,omitempty" jsonschema:"also ask the hosts of the tables [remote.NAME]"`
	}) words {
		return words{"doctor", "--json"}.yes("no-remote", !in.Remote)
	})
	add(s, "profile", "profile the kernels of one workload: Nsight Compute, or counters without a GPU", func(in struct {
		Set      string `json:"set,omitempty"`
		Workload string `json:"workload,omitempty" jsonschema:"beginning of the uuid; default: first of the set"`
	}) words {
		return words{"profile", "--json=final"}.flag("set", in.Set).flag("workload", in.Workload)
	})
	add(s, "report", "write runs as Markdown, or as an HTML page in the run's folder", func(in struct {
		Runs []string `json:"runs,omitempty" jsonschema:"ids, or last; default: last"`
		HTML bool     `json:"html,omitempty" jsonschema:"write report.html and return its path"`
	}) words {
		w := append(words{"report"}, in.Runs...)
		if in.HTML {
			return append(w, "--json")
		}
		return append(w, "--format=md", "-o=-")
	})
	add(s, "runs", "list the runs, newest first, or show the result of one", func(in struct {
		Run   string `json:"run,omitempty" jsonschema:"run to show; default: list all"`
		Limit int    `json:"limit,omitempty" jsonschema:"number of runs, from the newest"`
	}) words {
		if in.Run != "" {
			return words{"runs", "show", in.Run, "--json=final"}
		}
		return words{"runs", "ls", "--json"}.number("limit", in.Limit)
	})
	return s.Run(ctx, &mcp.IOTransport{Reader: io.NopCloser(in), Writer: output{out}})
}

// An output stays open after the client has disconnected.
type output struct{ io.Writer }

func (output) Close() error { return nil }

type server struct {
	*mcp.Server
	root   string
	call   Call
	device chan struct{} // semaphore of the calls that run solutions
}

type compareInput struct {
	A string `json:"a" jsonschema:"a run (id, last, profile), a git revision such as HEAD, or a folder with a config.toml"`
	B string `json:"b,omitempty" jsonschema:"like a; leave it out with define"`

	Define []string `json:"define,omitempty" jsonschema:"constants of a to sweep, NAME=VALUE,VALUE: which is the fastest?"`
	selection
}

type packInput struct {
	Packed bool `json:"packed,omitempty" jsonschema:"write packed_solution.json, which the contest prefers to the sources"`
}

// A selection chooses the workloads and the device.
type selection struct {
	Device string `json:"device,omitempty" jsonschema:"auto, cuda, cuda:N or emu"`
	choice
}

func (s selection) flags(w words) words { return s.choice.flags(w.flag("device", s.Device)) }

// A choice chooses the workloads.
type choice struct {
	Set      string   `json:"set,omitempty" jsonschema:"workload set: default, contest, ..."`
	Where    []string `json:"where,omitempty" jsonschema:"only workloads with AXIS=N or AXIS=N..M"`
	Workload []string `json:"workload,omitempty" jsonschema:"only workloads whose uuid begins with this"`
	Sample   int      `json:"sample,omitempty" jsonschema:"number of workloads, spread over the axes"`
	Limit    int      `json:"limit,omitempty" jsonschema:"number of workloads, from the first"`
	Profile  string   `json:"profile,omitempty" jsonschema:"official, quick or thorough"`
}

func (c choice) flags(w words) words {
	return w.flag("set", c.Set).flag("where", c.Where...).flag("workload", c.Workload...).
		number("sample", c.Sample).number("limit", c.Limit).flag("profile", c.Profile)
}

// words are command-line arguments. A value shares the word of its flag, so that it cannot be taken for another flag.
type words []string

func (w words) argument(value string) words {
	if value == "" {
		return w
	}
	return append(w, value)
}

func (w words) flag(name string, values ...string) words {
	for _, v := range values {
		if v != "" {
			w = append(w, "--"+name+"="+v)
		}
	}
	return w
}

func (w words) number(name string, n int) words {
	if n == 0 {
		return w
	}
	return w.flag(name, fmt.Sprint(n))
}

func (w words) yes(name string, on bool) words {
	if !on {
		return w
	}
	return append(w, "--"+name)
}

// add adds the tool name. line turns its input into a command line.
func add[In any](s *server, name, text string, line func(In) words) {
	mcp.AddTool(s.Server, &mcp.Tool{Name: name, Description: text},
		func(ctx context.Context, req *mcp.CallToolRequest, in In) (*mcp.CallToolResult, any, error) {
			if err := s.bounded(in); err != nil {
				return nil, nil, err
			}
			if slices.Contains([]string{"local", "compare", "sanitize", "profile"}, name) {
				select {
				case s.device <- struct{}{}:
					defer func() { <-s.device }()
				case <-ctx.Done():
					return nil, nil, ctx.Err()
				}
			}
			stdout, stderr, status := s.call(ctx, line(in), progress(ctx, req))
			return result(stdout, stderr, status)
		})
}

// result is an error if the command itself failed. A wrong submission is an ordinary result.
func result(stdout, stderr string, status int) (*mcp.CallToolResult, any, error) {
	var o struct {
		Status string `json:"status"`
	}
	isObject := json.Unmarshal([]byte(stdout), &o) == nil
	failed := status != 0
	if isObject && o.Status != "" {
		failed = o.Status == "error" || o.Status == "interrupted"
	}
	if strings.TrimSpace(stdout) == "" {
		stdout = stderr
	}
	res := &mcp.CallToolResult{IsError: failed, Content: []mcp.Content{&mcp.TextContent{Text: stdout}}}
	if isObject {
		res.StructuredContent = json.RawMessage(stdout)
	}
	return res, nil, nil
}

// progress reports each finished workload to the client if the request has a progress token.
func progress(ctx context.Context, req *mcp.CallToolRequest) event.Sink {
	token := req.Params.GetProgressToken()
	done, total := 0, 0
	return func(e event.Event) error {
		text := "no verdict"
		switch {
		case token == nil:
			return nil
		case e.Run != nil:
			total += len(e.Run.Workloads)
			return nil
		case e.Evaluated != nil:
			text = string(e.Evaluated.Status())
		case e.Type != event.TypeFailed:
			return nil
		}
		done++
		_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: float64(done),
			Total: float64(total), Message: plain.Short(e.Workload) + " " + text}) // a disconnected client ends ctx
		return nil
	}
}

// bounded rejects inputs that name paths outside of the project or look like flags.
func (s *server) bounded(in any) error {
	text, err := json.Marshal(in)
	if err != nil {
		return err
	}
	var values map[string]any
	if err := json.Unmarshal(text, &values); err != nil {
		return err
	}
	for key, v := range values {
		list, ok := v.([]any)
		if !ok {
			list = []any{v}
		}
		for _, v := range list {
			if word, ok := v.(string); ok && !s.inside(word) {
				return fmt.Errorf("%s: %q is outside the served project", key, word)
			}
		}
	}
	return nil
}

// inside reports whether every path that word could mean, REV:DIR included, is below the root.
func (s *server) inside(word string) bool {
	if strings.HasPrefix(word, "-") {
		return false
	}
	root, err := filepath.EvalSymlinks(s.root)
	if err != nil {
		return false
	}
	for _, part := range append(strings.Split(word, ":"), word) {
		if part == "" {
			continue
		}
		name := filepath.Join(root, part)
		if filepath.IsAbs(part) {
			name = filepath.Clean(part)
		}
		if real, err := filepath.EvalSymlinks(name); err == nil {
			name = real
		}
		if rel, err := filepath.Rel(root, name); err != nil || !filepath.IsLocal(rel) {
			return false
		}
	}
	return true
}
