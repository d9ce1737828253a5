package slurm

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"fisub/internal/plain"
	"fisub/remote"
	"fisub/remote/work"
)

// A status is Slurm's view of a job. The zero value means that Slurm has forgotten the job.
type status struct {
	state     string // "PENDING", "RUNNING", "NODE_FAIL", ...
	reason    string // such as "Resources"; may be ""
	node      string
	partition string
	start     time.Time // estimate while the job is queued; zero if Slurm gives no estimate
	code      string    // "exit status:signal" of an ended job, if it was queried
}

// firstLine returns the first cleaned line, without the heading that Slurm writes for each cluster.
func firstLine(out string) string {
	for line := range strings.Lines(out) {
		if line = plain.Brief(line, 1<<16); line != "" && !strings.HasPrefix(line, "CLUSTER:") {
			return line
		}
	}
	return ""
}

// scontrolArgs queries one job. Times are in seconds since 1970, independent of the cluster's time zone.
func scontrolArgs(j *work.FolderJob) []string {
	return onCluster(j, []string{"env", "SLURM_TIME_FORMAT=%s", "scontrol", "--oneliner", "show", "job", j.Number})
}

// readScontrol parses the output of scontrol, in which "_" replaces a space. The first value of each key counts: names
// chosen by the user come later.
func readScontrol(out string) (status, error) {
	var s status
	var start string
	fields := map[string]*string{"JobState": &s.state, "Reason": &s.reason, "ExitCode": &s.code, "StartTime": &start,
		"NodeList": &s.node, "Partition": &s.partition}
	line := firstLine(out)
	for _, word := range strings.Fields(line) {
		key, value, _ := strings.Cut(word, "=")
		if to := fields[key]; to != nil && *to == "" && value != "(null)" && value != "None" {
			*to = value
		}
	}
	s.reason = strings.ReplaceAll(s.reason, "_", " ")
	if n, err := strconv.ParseInt(start, 10, 64); err == nil && n > 0 {
		s.start = time.Unix(n, 0)
	}
	if s.state == "" {
		return s, fmt.Errorf("scontrol: cannot read %.200q", line)
	}
	return s, nil
}

func sacctArgs(j *work.FolderJob) []string {
	return onCluster(j, []string{"sacct", "--noheader", "--parsable2", "--allocations", "--jobs=" + j.Number,
		"--format=State,ExitCode,NodeList"})
}

func readSacct(out string) status {
	f := strings.SplitN(firstLine(out), "|", 3)
	if len(f) != 3 {
		return status{}
	}
	state, _, _ := strings.Cut(f[0], " ") // "CANCELLED by 1000"
	return status{state: state, code: f[1], node: strings.TrimPrefix(f[2], "None assigned")}
}

// queueArgs lists all queued jobs of a partition by priority.
func queueArgs(j *work.FolderJob, partition string) []string {
	return onCluster(j, []string{"squeue", "--noheader", "--states=PENDING", "--partition=" + partition, "--sort=-p,i",
		"--format=%A"})
}

// position returns the 1-based position of a job among the queued ones, 0 if it is not queued.
func position(out, number string) (at, of int) {
	all := slices.DeleteFunc(strings.Fields(out), func(n string) bool { return !jobNumber.MatchString(n) })
	return slices.Index(all, number) + 1, len(all)
}

// phases maps states of jobs that have not ended. Unknown states count as running: only known states end a job.
var phases = map[string]remote.Phase{
	"PENDING": remote.Queued, "REQUEUED": remote.Queued, "REQUEUE_HOLD": remote.Queued, "REQUEUE_FED": remote.Queued,
	"RESV_DEL_HOLD": remote.Queued, "SPECIAL_EXIT": remote.Queued, "CONFIGURING": remote.Starting,
}

// ends maps states of ended jobs to exits, as far as the state alone determines them.
var ends = map[string]remote.Exit{
	"COMPLETED": {}, "FAILED": {},
	"CANCELLED": {End: remote.Cancelled}, "REVOKED": {End: remote.Cancelled},
	"TIMEOUT":       {End: remote.Limited, Hint: "set a longer limit"},
	"DEADLINE":      {End: remote.Limited, Hint: "set a longer limit"},
	"PREEMPTED":     {End: remote.Lost, Hint: "set a qos or partition whose jobs are not preempted"},
	"OUT_OF_MEMORY": {End: remote.Lost, Hint: `request more memory: sbatch = ["--mem=64G"]`},
	"NODE_FAIL":     {End: remote.Lost}, "BOOT_FAIL": {End: remote.Lost},
}

// over reports whether the job has ended or is unknown to Slurm.
func (s status) over() bool {
	_, over := ends[s.state]
	return over || s.state == ""
}

func (s status) phase() remote.Phase { return cmp.Or(phases[s.state], remote.Running) }

// A reason is why a job is queued. hint is set if the job will never start as it is.
type reason struct{ begin, text, hint string }

// reasons are matched by the beginning of Slurm's text. The first match counts.
var reasons = []reason{
	{"PartitionTimeLimit", "", "set limit to a time that the partition allows"},
	{"PartitionNodeLimit", "", "set another partition"},
	{"BadConstraints", "", "set gres, constraint or partition to what nodes have"},
	{"InvalidAccount", "", "set account to one of yours"},
	{"InvalidQOS", "", "set qos to one of yours"},
	{"AccountNotAllowed", "", "set account to one that the partition allows"},
	{"QOSNotAllowed", "", "set qos to one that the partition allows"},
	{"QOSMaxWallDurationPerJobLimit", "a limit of the QOS is used up", "set limit to a time that the QOS allows"},
	{"AssocMaxWallDurationPerJobLimit", "a limit of the account is used up",
		"set limit to a time that the account allows"},
	{"QOSMaxGRESPerJob", "a limit of the QOS is used up", "set gres to fewer GPUs"},
	{"AssocMaxGRESPerJob", "a limit of the account is used up", "set gres to fewer GPUs"},
	{"Priority", "jobs of a higher priority go first", ""},
	{"Resources", "no matching GPU is free", ""},
	{"ReqNodeNotAvail", "nodes are down, drained or reserved", ""},
	{"Reservation", "the reservation has not begun", ""},
	{"QOS", "a limit of the QOS is used up", ""},
	{"Assoc", "a limit of the account is used up", ""},
	{"JobHeld", "held; scontrol release starts it", ""},
	{"PartitionDown", "the partition is down", ""},
	{"PartitionInactive", "the partition is inactive", ""},
	{"NodeDown", "nodes are down", ""},
	{"Licenses", "a licence is in use", ""},
	{"BeginTime", "not before a set time", ""},
	{"Dependency", "waits for another job", ""},
	{"Cleaning", "the job is being cleaned up before a restart", ""},
	{"launch failed", "a node could not start it", ""},
}

// why returns the reason why a job is queued, or the zero value.
func (s status) why() reason {
	at := slices.IndexFunc(reasons, func(r reason) bool { return strings.HasPrefix(s.reason, r.begin) })
	if at < 0 || s.phase() != remote.Queued {
		return reason{}
	}
	return reasons[at]
}

// stage returns the stage of a job that has not ended. at is 0 if its position is unknown.
func (s status) stage(at, of int) remote.Stage {
	st := remote.Stage{Phase: s.phase()}
	var parts []string
	if st.Phase == remote.Queued {
		st.Start = s.start
		if at > 0 {
			parts = append(parts, fmt.Sprintf("position %d of %d", at, of))
		}
		if why := s.why().text; why != "" {
			parts = append(parts, s.reason+" ("+why+")")
		} else if s.reason != "" {
			parts = append(parts, s.reason)
		}
	} else if s.node != "" {
		parts = append(parts, "node "+s.node)
	}
	if !slices.Contains([]string{"PENDING", "RUNNING", "CONFIGURING", "COMPLETING"}, s.state) {
		parts = append(parts, s.state)
	}
	st.Text = strings.Join(parts, ", ")
	return st
}

// text describes the end of a job that is over.
func (s status) text(number string) string {
	text := fmt.Sprintf("job %s: %s", number, s.state)
	if s.node != "" {
		text += " on " + s.node
	}
	if s.reason != "" {
		text += ", " + s.reason
	}
	return text
}

// lost returns the exit of a job that is over and left none, as its agent and Slurm do not say why. started is whether
// the agent ran; output is the last one of Slurm and the shell.
func (s status) lost(number, dir string, started bool, output string) remote.Exit {
	if s.state == "" {
		return remote.Exit{End: remote.Lost,
			Text: fmt.Sprintf("job %s: unknown to Slurm, and without exit.json", number)}
	}
	text := s.text(number)
	if s.code != "" {
		text += ", exit code " + s.code
	}
	if output != "" {
		text += ": " + output
	}
	if started {
		return remote.Exit{End: remote.Lost, Text: text + "; no exit.json"}
	}
	hint := ""
	if output == "" {
		hint = "set workdir to a folder shared by login and compute nodes: no files of the job in " + dir
	}
	return remote.Exit{End: remote.Refused, Text: text, Hint: hint}
}

// sinfoArgs lists the nodes of a partition, by default of all.
func sinfoArgs(partition string) []string {
	args := []string{"sinfo", "--noheader", "--format=%P|%a|%D|%T|%G"}
	if partition != "" {
		args = append(args, "--partition="+partition)
	}
	return args
}

// startForm matches the start time, in seconds since 1970, in the output of sbatch --test-only.
var startForm = regexp.MustCompile(`to start at ([0-9]{1,12}) `)

// readiness returns the state and the detail of a remote.Host from the output of sinfo and sbatch --test-only. If sinfo
// lists all partitions, only the default one counts, marked with a star.
func readiness(nodes, words string, now time.Time) (state, detail string) {
	byState := map[string]int{}
	var partition, gres string
	star := strings.Contains(nodes, "*|")
	for line := range strings.Lines(nodes) {
		f := strings.SplitN(plain.Brief(line, 1000), "|", 5)
		if len(f) != 5 || star && !strings.HasSuffix(f[0], "*") {
			continue
		}
		n, _ := strconv.Atoi(f[2])
		byState[f[3]] += n
		partition = strings.TrimSuffix(f[0], "*")
		if f[4] != "(null)" {
			gres = f[4]
		}
	}
	if partition == "" {
		return "down", "no such nodes"
	}
	parts := []string{"partition " + partition}
	for _, s := range slices.Sorted(maps.Keys(byState)) {
		parts = append(parts, fmt.Sprintf("%d nodes %s", byState[s], s))
	}
	if gres != "" {
		parts = append(parts, gres)
	}
	state = "ready"
	if m := startForm.FindStringSubmatch(words); m != nil {
		n, _ := strconv.ParseInt(m[1], 10, 64)
		if start := time.Unix(n, 0); start.After(now.Add(time.Minute)) {
			state = "busy"
			parts = append(parts, "a job would start in about "+start.Sub(now).Round(time.Minute).String())
		} else {
			parts = append(parts, "a job would start now")
		}
	}
	return state, strings.Join(parts, ", ")
}
