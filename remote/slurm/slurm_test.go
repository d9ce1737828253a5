package slurm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fisub/remote"
	"fisub/remote/agent"
	"fisub/remote/host"
	"fisub/remote/remotetest"
	"fisub/remote/servertest"
	"fisub/remote/work"
)

func TestConfig(t *testing.T) {
	_, err := open("lab", map[string]any{
		"login": "-oProxyCommand=x", "ssh_config": "x", "workdir": "~/../x", "partition": "gpu; rm", "account": "a b",
		"qos": "--q", "gres": "gpu 1",
		"constraint": "a\nb", "jobs": int64(0), "partitions": "x",
		"sbatch": []any{"mem=1", "--wrap=x", "-t5", "--time=5", "--gpus=2", "--array=0-3", "--arr=0-3", "-a",
			"--gres-flags=disable-binding", "--mail-user=x\ny", "--mem=64G", "--exclusive"},
	})
	remotetest.CheckFaults(t, err, `unknown key remote.lab.partitions
remote.lab.login: want an SSH host, got "-oProxyCommand=x"
remote.lab.partition: want the name of a partition, got "gpu; rm"
remote.lab.account: want the name of an account, got "a b"
remote.lab.qos: want the name of a QOS, got "--q"
remote.lab.gres: want one such as "gpu:b200:1", got "gpu 1"
remote.lab.constraint: want printed characters, at most 500, got "a\nb"
remote.lab.ssh_config: "x" is not absolute
remote.lab.workdir: want an absolute path, or one that begins with ~/, got "~/../x"
remote.lab.sbatch: "mem=1" is not an option: write --name or --name=value
remote.lab.sbatch: "--wrap=x" is set by fisub
remote.lab.sbatch: "-t5" is not an option: write --name or --name=value
remote.lab.sbatch: "--time=5" has a key of its own: limit
remote.lab.sbatch: "--gpus=2" has a key of its own: gres
remote.lab.sbatch: "--array=0-3" is set by fisub
remote.lab.sbatch: "--arr=0-3" is set by fisub
remote.lab.sbatch: "-a" is not an option: write --name or --name=value
remote.lab.sbatch: "--mail-user=x\ny" is not an option: write --name or --name=value
remote.lab.jobs: want 1 to 1000, got 0`)
	p, err := open("lab", map[string]any{"provider": "slurm", "gpu": "b200", "limit": "20m",
		"jobs": int64(3)})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := p.Places(5), []remote.Place{{Host: "slot1", GPU: -1}, {Host: "slot2", GPU: -1},
		{Host: "slot3", GPU: -1}}; !slices.Equal(got, want) || len(p.Places(2)) != 2 || len(p.Places(-1)) != 0 {
		t.Errorf("places: got %v, want %v", got, want)
	}
}

// The exact commands and scripts. The goldens are written by hand.
func TestSbatch(t *testing.T) {
	long := &remote.Job{ID: "r1-0", GPU: "b200", Limit: 20*time.Minute + time.Second,
		Labels: map[string]string{"run": "r1", "definition": "gdn\tdecode"}}
	for _, tt := range []struct {
		name   string
		config Config
		job    *remote.Job
		dir    string
		want   []string
	}{
		{"least", Config{}, &remote.Job{ID: "j", Limit: time.Second}, "/w/jobs/j",
			[]string{"sbatch", "--nodes=1", "--ntasks=1", "--time=4", "--job-name=fisub-j",
				"--comment=fisub", "--chdir=/w/jobs/j", "--output=/w/jobs/j/slurm.log", "--error=/w/jobs/j/slurm.log",
				"--export=HOME,LANG,LOGNAME,PATH,SHELL,USER", "--propagate=NONE", "--no-requeue", "--parsable"}},
		{"all", Config{Partition: "gpu", Account: "acc", QOS: "high", Constraint: "nvlink&b200",
			Sbatch: []string{"--mem=64G", "--exclusive"}}, long, "/50%/it's/jobs/r1-0",
			[]string{"sbatch", "--mem=64G", "--exclusive", "--partition=gpu", "--account=acc", "--qos=high",
				"--constraint=nvlink&b200", "--gres=gpu:b200:1",
				"--nodes=1", "--ntasks=1", "--time=24", "--job-name=fisub-r1-0", "--comment=fisub definition=gdn decode run=r1",
				"--chdir=/50%/it's/jobs/r1-0",
				"--output=/50%%/it's/jobs/r1-0/slurm.log", "--error=/50%%/it's/jobs/r1-0/slurm.log",
				"--export=HOME,LANG,LOGNAME,PATH,SHELL,USER", "--propagate=NONE", "--no-requeue", "--parsable"}},
		{"of a run", Config{}, &remote.Job{ID: "fisub-20261123-1", Limit: time.Second}, "/w/jobs/fisub-20261123-1",
			[]string{"sbatch", "--nodes=1", "--ntasks=1", "--time=4", "--job-name=fisub-20261123-1",
				"--comment=fisub", "--chdir=/w/jobs/fisub-20261123-1", "--output=/w/jobs/fisub-20261123-1/slurm.log",
				"--error=/w/jobs/fisub-20261123-1/slurm.log", "--export=HOME,LANG,LOGNAME,PATH,SHELL,USER", "--propagate=NONE",
				"--no-requeue", "--parsable"}},
		{"gres of the table", Config{Gres: "gpu:2"}, &remote.Job{ID: "j", GPU: "b200", Limit: time.Hour}, "/w/jobs/j",
			[]string{"sbatch", "--gres=gpu:2", "--nodes=1",
				"--ntasks=1", "--time=63", "--job-name=fisub-j", "--comment=fisub", "--chdir=/w/jobs/j",
				"--output=/w/jobs/j/slurm.log",
				"--error=/w/jobs/j/slurm.log", "--export=HOME,LANG,LOGNAME,PATH,SHELL,USER", "--propagate=NONE", "--no-requeue",
				"--parsable"}},
	} {
		if got := sbatchArgs(&tt.config, tt.job, tt.dir); !slices.Equal(got, tt.want) {
			t.Errorf("%s: got\n%q\nwant\n%q", tt.name, got, tt.want)
		}
	}
	if got, want := script("/w/it's/store/aa", "/w/it's/jobs/j"),
		`#!/bin/sh
agent='/w/it'\''s/store/aa' dir='/w/it'\''s/jobs/j'
trap 'kill -TERM $!' TERM
"$agent" agent run "$dir" &
while wait $!; s=$?; [ $s -gt 128 ] && kill -0 $! 2>/dev/null; do :; done
[ $s -lt 126 ] || "$agent" agent sweep "$dir"
exit $s
`; got != want {
		t.Errorf("script: got %q, want %q", got, want)
	}
}

func TestArgs(t *testing.T) {
	here, there := &work.FolderJob{Number: "7"}, &work.FolderJob{Number: "7", Cluster: "east"}
	for _, tt := range []struct {
		got  []string
		want string
	}{
		{scontrolArgs(here), "env SLURM_TIME_FORMAT=%s scontrol --oneliner show job 7"},
		{scontrolArgs(there), "env SLURM_TIME_FORMAT=%s scontrol --clusters=east --oneliner show job 7"},
		{sacctArgs(here), "sacct --noheader --parsable2 --allocations --jobs=7 --format=State,ExitCode,NodeList"},
		{queueArgs(there, "gpu"), "squeue --clusters=east --noheader --states=PENDING --partition=gpu --sort=-p,i --format=%A"},
		{sinfoArgs(""), "sinfo --noheader --format=%P|%a|%D|%T|%G"},
		{sinfoArgs("gpu"), "sinfo --noheader --format=%P|%a|%D|%T|%G --partition=gpu"},
	} {
		if got := strings.Join(tt.got, " "); got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
}

func TestAccepted(t *testing.T) {
	for _, tt := range []struct{ out, number, cluster string }{
		{"12\n", "12", ""}, {"12;east\n", "12", "east"}, {"", "", ""}, {"Submitted batch job 12", "", ""},
		{"12;--x y", "", ""}, {"-1", "", ""},
	} {
		number, cluster, err := accepted(tt.out)
		if number != tt.number || cluster != tt.cluster || (err != nil) != (tt.number == "") {
			t.Errorf("%q: got %q, %q, %v", tt.out, number, cluster, err)
		}
	}
}

// Output of Slurm 22.05, or texts from its sources.
func TestReaders(t *testing.T) {
	for _, tt := range []struct {
		out  string
		want status
	}{
		{"JobId=3 JobName=fisub-a JobState=FAILED Reason=JobLaunchFailure Dependency=(null) ExitCode=0:53 " +
			"StartTime=Unknown Partition=gpu NodeList=(null) NodeList=vm Comment=x ExitCode=9:9 JobState=RUNNING\n",
			status{state: "FAILED", reason: "JobLaunchFailure", code: "0:53", node: "vm", partition: "gpu"}},
		{"JobId=3 JobState=PENDING Reason=ReqNodeNotAvail,_UnavailableNodes:n[1-2] StartTime=1795253264 Partition=gpu",
			status{state: "PENDING", partition: "gpu", reason: "ReqNodeNotAvail, UnavailableNodes:n[1-2]",
				start: time.Unix(1795253264, 0)}},
		{"CLUSTER: east\nJobState=RUNNING Reason=None StartTime=1795253204 Partition=gpu NodeList=n1\n",
			status{state: "RUNNING", node: "n1", partition: "gpu", start: time.Unix(1795253204, 0)}},
		{"JobState=RUNNING NodeList=n\x1b1", status{state: "RUNNING", node: "n"}},
	} {
		if got, err := readScontrol(tt.out); err != nil || got != tt.want {
			t.Errorf("scontrol %q: got %+v, %v, want %+v", tt.out, got, err, tt.want)
		}
	}
	for _, words := range []string{"", "scontrol: what?\n"} {
		if _, err := readScontrol(words); err == nil {
			t.Errorf("scontrol %q in place of a job: no error", words)
		}
	}
	for out, want := range map[string]status{
		"CANCELLED by 1000|0:0|None assigned\n": {state: "CANCELLED", code: "0:0"},
		"FAILED|7:0|vm\n":                       {state: "FAILED", code: "7:0", node: "vm"},
		"":                                      {},
		"Slurm accounting storage is disabled":  {},
	} {
		if got := readSacct(out); got != want {
			t.Errorf("sacct %q: got %+v, want %+v", out, got, want)
		}
	}
}

func TestPosition(t *testing.T) {
	out := "CLUSTER: east\n7\n8\nx\n5\n9\n"
	for number, want := range map[string]int{"7": 1, "8": 2, "5": 3, "9": 4, "4": 0} {
		if at, of := position(out, number); at != want || of != 4 {
			t.Errorf("%s: got %d of %d, want %d of 4", number, at, of, want)
		}
	}
}

func TestStage(t *testing.T) {
	start := time.Unix(1000, 0)
	for _, tt := range []struct {
		status   status
		position int
		want     remote.Stage
		hopeless bool
	}{
		{status{state: "PENDING", reason: "Priority", start: start}, 3,
			remote.Stage{Phase: remote.Queued, Text: "position 3 of 7, Priority (jobs of a higher priority go first)",
				Start: start}, false},
		{status{state: "PENDING", reason: "QOSMaxGRESPerUser"}, 0,
			remote.Stage{Phase: remote.Queued, Text: "QOSMaxGRESPerUser (a limit of the QOS is used up)"}, false},
		{status{state: "PENDING", reason: "ReqNodeNotAvail, UnavailableNodes:n1"}, 0,
			remote.Stage{Phase: remote.Queued,
				Text: "ReqNodeNotAvail, UnavailableNodes:n1 (nodes are down, drained or reserved)"}, false},
		{status{state: "PENDING"}, 0, remote.Stage{Phase: remote.Queued}, false},
		{status{state: "PENDING", reason: "PartitionTimeLimit"}, 0,
			remote.Stage{Phase: remote.Queued, Text: "PartitionTimeLimit"}, true},
		{status{state: "PENDING", reason: "QOSMaxGRESPerJob"}, 0,
			remote.Stage{Phase: remote.Queued, Text: "QOSMaxGRESPerJob (a limit of the QOS is used up)"}, true},
		{status{state: "REQUEUED", reason: "Something New"}, 0,
			remote.Stage{Phase: remote.Queued, Text: "Something New, REQUEUED"}, false},
		{status{state: "CONFIGURING", node: "n1"}, 0, remote.Stage{Phase: remote.Starting, Text: "node n1"}, false},
		{status{state: "RUNNING", node: "n1", start: start, reason: "PartitionTimeLimit"}, 0,
			remote.Stage{Phase: remote.Running, Text: "node n1"}, false},
		{status{state: "SUSPENDED", node: "n1"}, 0, remote.Stage{Phase: remote.Running, Text: "node n1, SUSPENDED"}, false},
		{status{state: "UNHEARD_OF"}, 0, remote.Stage{Phase: remote.Running, Text: "UNHEARD_OF"}, false},
	} {
		if got := tt.status.stage(tt.position, 7); got != tt.want {
			t.Errorf("%+v: got %+v, want %+v", tt.status, got, tt.want)
		}
		if got := tt.status.why().hint != ""; got != tt.hopeless || tt.status.over() {
			t.Errorf("%+v: hopeless %t, over %t", tt.status, got, tt.status.over())
		}
	}
}

// TestEnded checks what Slurm alone knows about the end of a job, and what is concluded if it knows nothing.
func TestEnded(t *testing.T) {
	for _, tt := range []struct {
		state   string
		started bool
		output  string
		end     remote.End
		text    string // in Text or Hint
	}{
		{"CANCELLED", true, "", remote.Cancelled, "job 7: CANCELLED on n1"},
		{"TIMEOUT", true, "", remote.Limited, "job 7: TIMEOUT"},
		{"DEADLINE", true, "", remote.Limited, "DEADLINE"},
		{"PREEMPTED", true, "", remote.Lost, "not preempted"},
		{"NODE_FAIL", true, "", remote.Lost, "NODE_FAIL"},
		{"BOOT_FAIL", false, "", remote.Lost, "BOOT_FAIL"},
		{"OUT_OF_MEMORY", true, "", remote.Lost, "--mem"},
		{"REVOKED", false, "", remote.Cancelled, "REVOKED"},
		{"FAILED", true, "", remote.Lost, "exit code 0:9; no exit.json"},
		{"COMPLETED", true, "", remote.Lost, "o exit.json"},
		{"FAILED", false, "", remote.Refused, "shared by login and compute nodes"},
		{"COMPLETED", false, "", remote.Refused, "shared by login and compute nodes"},
		{"FAILED", false, "sh: 2: exec: /w/store/aa: Permission denied", remote.Refused, "Permission denied"},
		{"", false, "", remote.Lost, "unknown to Slurm"},
		{"", true, "", remote.Lost, "unknown to Slurm"},
	} {
		s := status{state: tt.state}
		if tt.state != "" {
			s.node, s.code = "n1", "0:9"
		}
		got := ends[tt.state]
		if got.Text = s.text("7"); got.End == "" {
			got = s.lost("7", "/w/jobs/j", tt.started, tt.output)
		}
		if got.End != tt.end || !strings.Contains(got.Text+"\n"+got.Hint, tt.text) || !s.over() {
			t.Errorf("%s, started %t: got %+v, over %t, want %s %q", tt.state, tt.started, got, s.over(), tt.end, tt.text)
		}
	}
}

func TestDenied(t *testing.T) {
	for _, tt := range []struct {
		name, stderr string
		status       int
		code, text   string
	}{
		{"sbatch", "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified\n",
			1, "no-such", "sbatch: Invalid account or account/partition combination specified"},
		{"sbatch", "sbatch: error: Batch job submission failed: Invalid qos specification\n", 1, "no-such",
			"sbatch: Invalid qos specification"},
		{"sbatch",
			"sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size " +
				"and/or time limits)\n", 1, "quota",
			"sbatch: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"},
		{"sbatch",
			"sbatch: error: Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)\n", 1,
			"limit",
			"sbatch: Requested time limit is invalid (missing or exceeds some limit)"},
		{"sbatch", "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)\n", 1,
			"unreachable",
			"sbatch: Unable to contact slurm controller (connect failure)"},
		{"sbatch", "sbatch: error: Batch job submission failed: Protocol authentication error\n", 1, "credentials",
			"sbatch: Protocol authentication error"},
		{"sbatch",
			"sbatch: error: fetch_config: DNS SRV lookup failed\nsbatch: fatal: Could not establish a configuration source\n", 1,
			"unreachable",
			"sbatch: fetch_config: DNS SRV lookup failed; fatal: Could not establish a configuration source"},
		{"squeue", "", 127, "no-such", "squeue: command not found"},
		{"mkdir", "mkdir: cannot create directory '/policy': Disk quota exceeded\n", 1, "disk",
			"mkdir: cannot create directory '/policy': Disk quota exceeded"},
		{"mkdir", "mkdir: cannot create directory '/munge/policy': File exists\n", 1, "", ""},
		{"sbatch", "sbatch: error: something \x1b[31mnew\n", 1, "", ""},
	} {
		p, err := open("lab", map[string]any{"login": "login01"})
		if err != nil {
			t.Fatal(err)
		}
		p.folder.Host = &failing{err: &host.ExitError{Name: tt.name, Status: tt.status, Stderr: tt.stderr}}
		_, err = p.slurm(t.Context(), "", tt.name)
		err = p.Fault(t.Context(), remote.Place{}, fmt.Errorf("x: %w", err))
		var d *remote.Denied
		if !errors.As(err, &d) {
			d = &remote.Denied{}
		} else if d.Provider != "lab" || d.Host != "login01" || d.Hint == "" {
			t.Errorf("%q: got %+v", tt.stderr, d)
		}
		if d.Code != tt.code || d.Text != tt.text {
			t.Errorf("%q: got %s %q, want %s %q", tt.stderr, d.Code, d.Text, tt.code, tt.text)
		}
	}
}

// A failing is a login host whose commands fail.
type failing struct {
	host.Local
	err error
}

func (l *failing) Run(context.Context, []string, io.Reader, io.Writer) error { return l.err }

func TestReadiness(t *testing.T) {
	now := time.Unix(1000, 0)
	nodes := "gpu*|up|2|idle|gpu:b200:8\ngpu*|up|1|drained|gpu:b200:8\ncpu|up|9|idle|(null)\n"
	for _, tt := range []struct{ nodes, words, state, detail string }{
		{nodes, "sbatch: Job 1 to start at 1010 using 1 processors on nodes n1 in partition gpu", "ready",
			"partition gpu, 1 nodes drained, 2 nodes idle, gpu:b200:8, a job would start now"},
		{nodes, "sbatch: Job 1 to start at 8200 using 1 processors", "busy",
			"partition gpu, 1 nodes drained, 2 nodes idle, gpu:b200:8, a job would start in about 2h0m0s"},
		{"cpu|up|9|idle|(null)\n", "", "ready", "partition cpu, 9 nodes idle"},
		{"", "", "down", "no such nodes"},
	} {
		if state, detail := readiness(tt.nodes, tt.words, now); state != tt.state || detail != tt.detail {
			t.Errorf("got %s, %q, want %s, %q", state, detail, tt.state, tt.detail)
		}
	}
}

// A job without a GPU requests none, and a job that would wait for nodes is not refused.
func TestCheck(t *testing.T) {
	for _, tt := range []struct{ gpu, words, state, detail, gres string }{
		{"none", "", "ready", "1 nodes idle", ""},
		{"b200", "", "ready", "1 nodes idle", "--gres=gpu:b200:1"},
		{"b200", "sbatch: error: allocation failure: Required node not available (down, drained or reserved)", "busy",
			"Required node not available", "--gres=gpu:b200:1"},
		{"b200", "sbatch: error: allocation failure: Requested node configuration is not available", "down",
			"Requested node configuration is not available", "--gres=gpu:b200:1"},
	} {
		p, _, _ := faked(t, func(program string, args []string) (string, string, int) {
			if program != "sbatch" {
				return "gpu*|up|1|idle|gpu:b200:8\n", "", 0
			}
			return "", tt.words, min(len(tt.words), 1)
		})
		p.config.GPU = tt.gpu
		hosts, err := p.Check(t.Context())
		if err != nil || len(hosts) != 1 || hosts[0].State != tt.state || (hosts[0].Err != nil) != (tt.state == "down") ||
			!strings.Contains(hosts[0].Detail+fmt.Sprint(hosts[0].Err), tt.detail) {
			t.Errorf("%s, %q: got %+v, %v", tt.gpu, tt.words, hosts, err)
		}
		asked := strings.Join(p.folder.Host.(*fake).ran, "\n")
		if strings.Contains(asked, "--gres") != (tt.gres != "") || !strings.Contains(asked, tt.gres) {
			t.Errorf("%s: asked %s", tt.gpu, asked)
		}
	}
}

// A handle determines what Release cancels and removes, so a hostile one is rejected.
func TestHostileHandle(t *testing.T) {
	p, err := open("lab", nil)
	if err != nil {
		t.Fatal(err)
	}
	good := remote.Handle{Provider: Kind, Job: "j", Data: json.RawMessage(`{"number":"7","work":"/w"}`)}
	for _, data := range []string{`{"number":"7","work":"/w"}`, `{"number":"7","cluster":"east","work":"/w"}`,
		`{"work":"/w"}`} {
		h := good
		h.Data = json.RawMessage(data)
		if j, _, err := p.Open(h); err != nil || j.Dir() != "/w/jobs/j" || strings.Contains(data, "7") != (j.Number == "7") {
			t.Errorf("%s: got %+v, %v", data, j, err)
		}
	}
	remotetest.CheckForeign(t, p, good, `{"number":"--me","work":"/w"}`, `{"number":"7","work":"w"}`,
		`{"number":"7","work":"/w/../.."}`, `{"number":"7","work":"/w","cluster":"a b"}`)
}

// A fake is a login host on which a test answers for Slurm's commands; other commands and the files are real.
type fake struct {
	host.Local
	mu     sync.Mutex
	answer func(program string, args []string) (stdout, stderr string, status int)
	ran    []string
}

func (l *fake) Run(ctx context.Context, argv []string, stdin io.Reader, stdout io.Writer) error {
	name := program(argv)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ran = append(l.ran, strings.Join(argv, " "))
	if !slices.Contains(commands, name) {
		return l.Local.Run(ctx, argv, stdin, stdout)
	}
	out, words, status := l.answer(name, argv)
	if _, err := io.WriteString(stdout, out); err != nil || status == 0 {
		return err
	}
	return &host.ExitError{Name: argv[0], Status: status, Stderr: words}
}

// faked returns a provider on a fake, the handle of job "j" with number 7, and its existing folder.
func faked(t *testing.T, answer func(program string, args []string) (string, string, int)) (*Provider, remote.Handle,
	string) {
	t.Helper()
	root := t.TempDir()
	p, err := open("lab", map[string]any{"workdir": root})
	if err != nil {
		t.Fatal(err)
	}
	hurry(p)
	p.rules.Grace, p.command = 500*time.Millisecond, time.Second
	p.folder.Host = &fake{answer: answer}
	dir := agent.JobDir(root, "j")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return p, (&work.FolderJob{ID: "j", Work: root, Number: "7"}).Handle(Kind), dir
}

func TestAccounting(t *testing.T) {
	p, h, dir := faked(t, func(program string, _ []string) (string, string, int) {
		if program == "sacct" {
			return "OUT_OF_MEMORY|0:125|n1\n", "", 0
		}
		return "", "slurm_load_jobs error: Invalid job id specified", 1
	})
	servertest.Write(t, filepath.Join(dir, agent.StateName), "{}")
	servertest.Write(t, filepath.Join(dir, agent.EventsName), "one\n")
	if w, exit := remotetest.Wait(t, p, h); exit.End != remote.Lost || exit.Text != "job 7: OUT_OF_MEMORY on n1" ||
		w.Stream() != "one\n" {
		t.Errorf("got %+v, %q", exit, w.Stream())
	}
}
