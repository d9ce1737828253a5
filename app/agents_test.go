package app

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fisub/app/outcome"
	"fisub/internal/longtest"
	"fisub/internal/plain"
)

// A session is the work of an agent on a new project: it executes commands, edits the kernel, and keeps a transcript.
type session struct {
	t     *testing.T
	dir   string
	cache string
	env   []string
	text  *bytes.Buffer                         // transcript
	call  func(line string) (o outcome.Outcome) // executes a command with --json=final
}

func newSession(t *testing.T) *session {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip(err)
	}
	home := t.TempDir()
	cache := newCache(t)
	return &session{t: t, dir: filepath.Join(t.TempDir(), "my-kernel"), cache: cache, text: new(bytes.Buffer),
		env: append(os.Environ(), "FISUB_CACHE="+cache, "FIB_DATASET_PATH=", "CUDA_VISIBLE_DEVICES=-1", "HOME="+home,
			"GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=me", "GIT_AUTHOR_EMAIL=me@example.org", "GIT_COMMITTER_NAME=me",
			"GIT_COMMITTER_EMAIL=me@example.org")}
}

// shell executes a line literally, without a terminal.
func (a *session) shell(line string) (stdout, stderr string, status int) {
	cmd := exec.CommandContext(a.t.Context(), "sh", "-c", line)
	var out, errs bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = a.dir, a.env, &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		a.t.Fatal(err)
	}
	fmt.Fprintf(a.text, "$ %s\n%s", line, out.String())
	for l := range strings.Lines(errs.String()) {
		a.text.WriteString("2> " + l)
	}
	if status = cmd.ProcessState.ExitCode(); status != 0 {
		fmt.Fprintf(a.text, "exit status %d\n", status)
	}
	return out.String(), errs.String(), status
}

// loop returns the commands of the section Loop in AGENTS.md.
func (a *session) loop() (lines []string) {
	a.t.Helper()
	text, err := os.ReadFile(filepath.Join(a.dir, "AGENTS.md"))
	if err != nil {
		a.t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^    (fisub .*?)(  .*)?$`).FindAllStringSubmatch(string(text), -1) {
		lines = append(lines, m[1])
	}
	return lines
}

// follow executes the first n commands of the loop that need neither a GPU nor a commit, until one has a fault.
func (a *session) follow(n int) (line string, o outcome.Outcome) {
	for _, line = range a.loop() {
		switch strings.Fields(line)[1] {
		case "profile", "compare", "submit":
			continue
		}
		if n--; n < 0 {
			break
		}
		if o = a.call(line); o.Fault != nil || o.Exit != 0 {
			return line, o
		}
	}
	return "", o
}

// edit replaces old, which occurs once in the kernel.
func (a *session) edit(what, old, with string) {
	a.t.Helper()
	name := filepath.Join(a.dir, "solution", "cuda", "kernel.cu")
	text, err := os.ReadFile(name)
	if err != nil || strings.Count(string(text), old) != 1 {
		a.t.Fatalf("%s: %v, or not one %q in the kernel", what, err, old)
	}
	if err := os.WriteFile(name, []byte(strings.Replace(string(text), old, with, 1)), 0o644); err != nil {
		a.t.Fatal(err)
	}
	fmt.Fprintf(a.text, "-- the agent edits solution/cuda/kernel.cu: %s\n", what)
}

// lineOf returns the number of the line of the kernel that contains text.
func (a *session) lineOf(text string) int {
	a.t.Helper()
	all, err := os.ReadFile(filepath.Join(a.dir, "solution", "cuda", "kernel.cu"))
	before, _, found := strings.Cut(string(all), text)
	if err != nil || !found {
		a.t.Fatalf("no %q in the kernel: %v", text, err)
	}
	return strings.Count(before, "\n") + 1
}

// all is a number of commands of the loop.
const all = 100

const (
	barrier = "  __syncthreads();\n"
	direct  = "  if (lane_idx == 0) {\n    output[value] = __float2bfloat16_rn(result);\n  }\n"
	staged  = "  __shared__ float rows[kRowsPerBlock];\n  if (lane_idx == 0) {\n    rows[warp_idx] = result;\n  }\n" + barrier +
		"  if (threadIdx.x < kRowsPerBlock) {\n" +
		"    output[value - warp_idx + threadIdx.x] = __float2bfloat16_rn(rows[threadIdx.x]);\n  }\n"
)

// seeded checks that the loop passes a right kernel, and leads to the lines of a race and of an index that is too large
// by one.
func (a *session) seeded() {
	t := a.t
	t.Helper()
	a.edit("one warp writes the outputs of the block, from shared memory", direct, staged)
	if line, o := a.follow(2); line != "" {
		t.Fatalf("a right kernel: %s: got %q, fault %+v", line, o.Status, o.Fault)
	}
	a.edit("removes __syncthreads()", barrier, "")
	line, o := a.follow(all)
	store, load := a.lineOf("rows[warp_idx] = result"), a.lineOf("(rows[threadIdx.x])")
	if f := o.Fault; f == nil || f.File != "solution/cuda/kernel.cu" || f.Line != store && f.Line != load ||
		!strings.Contains(strings.Join(f.Lines, "\n"), "race on shared memory") ||
		!strings.HasPrefix(o.Next, "fisub sanitize --device emu ") {
		t.Errorf("a race: %s: got %q, fault %+v, next %q, want a race in line %d or %d", line, o.Status, f, o.Next, store,
			load)
	}
	// The next command is sanitize, whose next command repeats the check.
	o = a.call(o.Next)
	if f := o.Fault; o.Status != "faults" || f == nil || f.Code != "racecheck" || f.File != "solution/cuda/kernel.cu" ||
		f.Line != store && f.Line != load || !strings.HasSuffix(o.Next, " --tool racecheck") {
		t.Fatalf("sanitize: got %q, fault %+v, next %q", o.Status, f, o.Next)
	}
	next := o.Next
	if o = a.call(next); o.Status != "faults" {
		t.Errorf("%s: got %q before the fix", next, o.Status)
	}
	a.edit("restores __syncthreads()", "  if (threadIdx.x < kRowsPerBlock) {\n",
		barrier+"  if (threadIdx.x < kRowsPerBlock) {\n")
	if o = a.call(next); o.Status != "clean" {
		t.Errorf("%s: got %q after the fix, fault %+v", next, o.Status, o.Fault)
	}

	a.edit("an off-by-one: row + 1", "head * kDim + row;", "head * kDim + row + 1;")
	line, o = a.follow(all)
	read := a.lineOf("state + value * kDim + col);\n  }")
	if f := o.Fault; f == nil || f.Code != "RUNTIME_ERROR" || f.File != "solution/cuda/kernel.cu" || f.Line != read {
		t.Errorf("an off-by-one: %s: got %q, fault %+v, want line %d", line, o.Status, f, read)
	}
	if strings.HasPrefix(o.Next, "fisub sanitize") {
		if o = a.call(o.Next); o.Status != "faults" || o.Fault.Line != read {
			t.Errorf("an off-by-one: sanitize: got %q, fault %+v, want line %d", o.Status, o.Fault, read)
		}
	} else {
		t.Errorf("an off-by-one: got the next command %q, want sanitize", o.Next)
	}
	a.edit("removes + 1", "head * kDim + row + 1;", "head * kDim + row;")
	if line, o = a.follow(2); line != "" {
		t.Errorf("fixed: %s: got %q, fault %+v", line, o.Status, o.Fault)
	}
}

const initLine = "fisub init --definition gdn_decode_qk4_v8_d128_k_last --author me ."

// Each command in AGENTS.md works as described when it is executed literally, on a machine without a GPU. The loop
// finds seeded mistakes.
func TestAgentsShell(t *testing.T) {
	t.Parallel()
	longtest.CI(t, "runs on the virtual GPU")
	a := newSession(t)
	if err := os.MkdirAll(a.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	a.call = func(line string) (o outcome.Outcome) {
		out, _, status := a.shell(line + " --json=final")
		if err := json.Unmarshal([]byte(out), &o); err != nil || o.Exit != status {
			t.Fatalf("%s: got status %d, %q, %v", line, status, out, err)
		}
		return o
	}
	for _, line := range []string{initLine, "git init -q && git add . && git commit -q -m first"} {
		if out, errs, status := a.shell(line); status != 0 {
			t.Fatalf("%s: got status %d, %s%s", line, status, out, errs)
		}
	}
	text, err := os.ReadFile(filepath.Join(a.dir, "AGENTS.md"))
	if err != nil {
		t.Fatal(err)
	}
	lines := a.loop()
	for _, m := range regexp.MustCompile("`(fisub [^`]*)`").FindAllStringSubmatch(string(text), -1) {
		if !slices.Contains(lines, m[1]) {
			lines = append(lines, m[1])
		}
	}
	wants := map[string]struct {
		status int // -1: any but 0
		text   string
	}{
		"fisub check": {0, "\nsound\n"},
		"fisub local --set contest --sample 6 -x": {0, "6 of 6 PASSED"},
		"fisub local --set contest --strict":      {0, "54 of 54 PASSED"},
		"fisub local --device emu --set edge":     {0, "8 of 8 PASSED"},
		"fisub sanitize":                          {0, "racecheck   clean"},
		"fisub compare HEAD .":                    {0, "not comparable"},
		"fisub profile":                           {0, "lines that cost most"},
		"fisub submit --dry-run":                  {2, "run fisub local --set contest on a machine with a GPU, or fisub remote"},
		"fisub dataset show":                      {0, "reference"},
		"fisub local":                             {0, "20 of 20 PASSED"},
		"fisub mcp":                               {0, ""},
		"fisub compare":                           {2, "fisub compare"},
		"fisub remote --gpu b200":                 {-1, ""}, // no host
	}
	for _, line := range lines {
		want, ok := wants[line]
		if !ok {
			t.Errorf("AGENTS.md has the command %q, which the test does not know", line)
			continue
		}
		out, errs, status := a.shell(line)
		if status != want.status && (want.status >= 0 || status == 0) || !strings.Contains(out+errs, want.text) {
			t.Errorf("%s: got status %d, want %d and %q in\n%s%s", line, status, want.status, want.text, out, errs)
		}
		delete(wants, line)
	}
	for line := range wants {
		t.Errorf("AGENTS.md lacks the command %q", line)
	}
	if o := a.call("fisub submit --dry-run"); o.Next != "fisub remote --gpu b200 --set contest" {
		t.Errorf("submit: got the next command %q, want a run on a GPU", o.Next)
	}
	a.seeded()
	a.keep("shell.txt")
}

// The commands of the loop also work for Triton and Python submissions. submit still requires a run on a GPU.
func TestAgentsPython(t *testing.T) {
	t.Parallel()
	longtest.CI(t, "runs on the virtual GPU")
	for _, language := range []string{"triton", "python"} {
		t.Run(language, func(t *testing.T) {
			a := newSession(t)
			if noPython := emulated(t, a.cache); noPython != nil {
				longtest.Missing(t, "python", noPython)
			}
			a.env = append(a.env, "FISUB_VGPU_LIBRARY="+os.Getenv("FISUB_VGPU_LIBRARY")) // set by emulated
			if err := os.MkdirAll(a.dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if _, errs, status := a.shell(initLine + " --language " + language); status != 0 {
				t.Fatal(errs)
			}
			for _, line := range append([]string{"git init -q && git add . && git commit -q -m first"}, a.loop()...) {
				want := exitOK
				if strings.HasPrefix(line, "fisub submit") {
					want = exitUsage
				}
				if out, errs, status := a.shell(line); status != want {
					t.Errorf("%s: got status %d, want %d\n%s%s", line, status, want, out, errs)
				}
			}
		})
	}
}

// An agent that has only the tools of fisub mcp and an editor gets from an empty folder to a passing run and a packed
// solution, and finds the same mistakes. No result contains the path of the project.
func TestAgentsMCP(t *testing.T) {
	t.Parallel()
	longtest.CI(t, "runs on the virtual GPU")
	a := newSession(t)
	if err := os.MkdirAll(a.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("fisub", "mcp")
	cmd.Dir, cmd.Env, cmd.Stderr = a.dir, a.env, t.Output()
	s, err := mcp.NewClient(&mcp.Implementation{Name: "test"}, nil).Connect(t.Context(),
		&mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	tool := func(name string, args map[string]any) (o outcome.Outcome, text string) {
		t.Helper()
		res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: args})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		text = res.Content[0].(*mcp.TextContent).Text
		if strings.Contains(text, a.dir) {
			t.Errorf("%s: got a path outside of the project: %s", name, text)
		}
		in, err := json.Marshal(map[string]any{"name": name, "arguments": args})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(a.text, "-> %s\n<- %s\n", in, brief(text))
		_ = json.Unmarshal([]byte(text), &o) // a list or Markdown
		return o, text
	}
	a.call = func(line string) outcome.Outcome {
		name, args := toolCall(t, line)
		o, _ := tool(name, args)
		return o
	}
	if _, text := tool("init", map[string]any{"definition": "gdn_decode_qk4_v8_d128_k_last", "author": "me"}); !strings.
		Contains(text, `"fisub check"`) {
		t.Fatalf("init: got %s", text)
	}
	if _, text := tool("doctor", nil); !strings.Contains(text, `"fisub local --device emu"`) {
		t.Errorf("doctor: got %s", text)
	}
	if _, text := tool("dataset_show", nil); !strings.Contains(text, `"reference"`) {
		t.Errorf("dataset_show: got %s", text)
	}
	if line, o := a.follow(all); line != "" {
		t.Fatalf("%s: got %q, fault %+v, errors %v", line, o.Status, o.Fault, o.Errors)
	}
	o, _ := tool("pack", nil)
	if _, err := os.Stat(filepath.Join(a.dir, o.File)); o.Status != "packed" || o.File != "solution.json" || err != nil {
		t.Errorf("pack: got %q, %q, %v", o.Status, o.File, err)
	}
	if o, _ = tool("submit", map[string]any{"untested": true}); o.Status != "not submitted" || o.Next != "git init" {
		t.Errorf("submit: got %q, next %q, fault %+v", o.Status, o.Next, o.Fault)
	}
	if _, text := tool("report", nil); !strings.Contains(text, "8 of 8 workloads PASSED") {
		t.Errorf("report: got %s", text)
	}
	// Without yes, remote starts nothing.
	remote := map[string]any{"on": "loopback", "gpu": "none", "limit": 1}
	o, text := tool("remote", remote)
	if o.Status != "planned" || o.Plan == nil || !slices.Equal(o.Plan.Places, []string{"loopback: localhost"}) ||
		o.Plan.Workloads != 1 || o.Plan.LimitS != 1800 {
		t.Errorf("remote: got %s, want a plan", text)
	}
	before := runNames(t, a.dir)
	remote["yes"] = true
	if o, text = tool("remote", remote); o.Status != "passed" || o.Run.Passed != 1 {
		t.Errorf("remote with yes: got %s", text)
	}
	if after := runNames(t, a.dir); len(after) != len(before)+1 {
		t.Errorf("remote: got %d runs, want one more than %d: only the call with yes runs", len(after), len(before))
	}
	a.seeded()
	a.keep("mcp.txt")
}

// brief returns a result as one line, without the parts that are the same in all results.
func brief(text string) string {
	var o map[string]any
	if json.Unmarshal([]byte(text), &o) != nil {
		return strconv.Quote(text)
	}
	for _, key := range []string{"schema", "submission", "axes"} {
		delete(o, key)
	}
	if run, ok := o["run"].(map[string]any); ok {
		delete(run, "looked")
	}
	line, _ := json.Marshal(o)
	return string(line)
}

func runNames(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, ".fisub", "runs", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// toolCall translates a command in AGENTS.md or a next command to a call of a tool.
func toolCall(t *testing.T, line string) (name string, args map[string]any) {
	t.Helper()
	words := strings.Fields(line)[1:]
	name, args = words[0], map[string]any{}
	for i := 1; i < len(words); i++ {
		flag := strings.TrimPrefix(words[i], "--")
		switch flag {
		case "-x":
			args["fail_fast"] = true
		case "strict":
			args[flag] = true
		case "dry-run": // the tool submit implies it
		case "sample", "limit":
			i++
			n, err := strconv.Atoi(words[i])
			if err != nil {
				t.Fatal(err)
			}
			args[flag] = n
		case "set", "device", "tool":
			i++
			args[flag] = words[i]
		case "workload":
			if i++; name == "sanitize" {
				args[flag] = words[i]
			} else {
				args[flag] = []string{words[i]}
			}
		default:
			t.Fatalf("%s: no argument of a tool for %s", line, words[i])
		}
	}
	return name, args
}

// keep writes the transcript, shortened, to the folder FISUB_TRANSCRIPTS if that is set.
func (a *session) keep(name string) {
	dir := os.Getenv("FISUB_TRANSCRIPTS")
	if dir == "" {
		return
	}
	const most = 600                                          // characters of a line
	const lines = 14                                          // of the output of a command
	path := regexp.MustCompile(`(^|[\s"'(=])/(?:[\w.+-]+/)+`) // absolute
	var b strings.Builder
	b.WriteString("# FISUB_TRANSCRIPTS=" + filepath.ToSlash(filepath.Join("..", "docs", "results", "agents")) +
		" go test ./app -run TestAgents -count 1\n# Long lines and outputs are cut, and .../ replaces absolute paths. Virtual GPU.\n")
	n := 0
	for line := range strings.Lines(a.text.String()) {
		if strings.HasPrefix(line, "$ ") || strings.HasPrefix(line, "-") || strings.HasPrefix(line, "<- ") {
			n = 0
		}
		if n++; n > lines {
			if n == lines+1 {
				b.WriteString("...\n")
			}
			continue
		}
		b.WriteString(plain.Cut(path.ReplaceAllString(strings.TrimRight(line, "\n"), "${1}.../"), most) + "\n")
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte(b.String()), 0o644); err != nil {
		a.t.Error(err)
	}
}
