// Package agent runs on the host, for every provider. It executes one job whose files are already there, writes its
// exit.json, and passes on its event stream. It does not copy files to the host.
//
// The work folder W of a user on a host contains
//
//	W/store/<sha256>    contents of bundle files, never changed: 0444, executables 0555
//	W/jobs/<job id>/    the folder of one job
//	W/cache/            FISUB_CACHE of the jobs
//
// A job's folder contains the files named by the constants.
package agent

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"

	"fisub/internal/cache"
	"fisub/internal/plain"
	"fisub/remote"
)

// Files in a job's folder.
const (
	JobName    = "job.json"     // a remote.Job, written by the provider before the agent starts
	StateName  = "agent.json"   // the Identity of the agent
	EventsName = "events.jsonl" // the program's stdout, each line signed if the job has a key
	LogName    = "log"          // the program's stderr, and lines of the agent
	ExitName   = "exit.json"    // a remote.Exit; written when the job has ended
	StopName   = "stop"         // present if the job should end
	BundleName = "bundle"       // the files of the job
)

// KeepDays is how many days the store keeps an unused file.
const KeepDays = "30"

// Store returns the folder of file contents.
func Store(work string) string { return filepath.Join(work, "store") }

// Stored returns the path of the file with that hash.
func Stored(work, hash string) string { return filepath.Join(work, "store", hash) }

// Jobs returns the folder that contains the jobs' folders.
func Jobs(work string) string { return filepath.Join(work, "jobs") }

// JobDir returns the folder of one job.
func JobDir(work, id string) string { return filepath.Join(work, "jobs", id) }

// FreePrefix is the prefix of a job's folder while Free removes it. If Free is killed, the folder still counts as the
// job.
const FreePrefix = ".free-"

// An Agent holds the program-specific parts of the agent.
type Agent struct {
	Version string
	GPUs    func() ([]GPU, error) // ordered by ordinal; nil if the program cannot list GPUs
	Self    []string              // the command for an agent without its arguments: the path of the program and "agent"

	detached bool // only Stop may end the agent; a signal counts as Lost, as when the host shuts down
}

// maxJob limits the size of job.json and other small files.
const maxJob = 16 << 20

const alone = "--alone"

// Main runs a command of the agent, with the arguments after `fisub agent`. Its errors are for stderr.
//
//	run DIR [--alone]   run the job to its end; no error if exit.json was written; --alone: for start
//	start DIR           run the job detached; return when the agent is running
//	tail DIR [--from N] print the event stream from byte N until the job has ended
//	stop DIR            end the job and wait for it
//	free DIR            end the job and remove its folder
//	sweep DIR           end the remaining processes of a job whose agent is dead
//	look                print the GPUs of the host as JSON
func (a *Agent) Main(ctx context.Context, args []string, stdout io.Writer) error {
	var from int64
	var err error
	if len(args) == 4 && args[0] == "tail" && args[2] == "--from" {
		if from, err = strconv.ParseInt(args[3], 10, 64); err != nil || from < 0 {
			return fmt.Errorf("agent: invalid offset --from %q", args[3])
		}
		args = args[:2]
	}
	if len(args) == 3 && args[0] == "run" && args[2] == alone {
		a.detached, args = true, args[:2]
	}
	if len(args) == 1 && args[0] == "look" {
		gpus, err := a.ListGPUs()
		if err != nil {
			return err
		}
		return json.NewEncoder(stdout).Encode(gpus)
	}
	usage := errors.New("agent: want run|start|tail|stop|free|sweep DIR, or look")
	if len(args) != 2 {
		return usage
	}
	dir, err := filepath.Abs(args[1])
	if err != nil {
		return err
	}
	switch args[0] {
	case "run":
		ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		_, err = a.Run(ctx, dir)
	case "start":
		err = a.Start(ctx, dir)
	case "tail":
		_, err = Tail(ctx, dir, from, stdout)
	case "stop":
		_, err = Stop(ctx, dir)
	case "free":
		err = Free(ctx, dir)
	case "sweep":
		err = swept(dir)
	default:
		err = usage
	}
	return err
}

// ErrHash is the error of a file whose content does not match its hash.
var ErrHash = errors.New("wrong hash")

// ReadJob reads and checks the job in folder dir.
func ReadJob(dir string) (*remote.Job, error) {
	var job remote.Job
	if err := readJSON(filepath.Join(dir, JobName), &job); err != nil {
		return nil, err
	}
	if err := job.Check(); err != nil {
		return nil, err
	}
	if job.ID != filepath.Base(dir) {
		return nil, fmt.Errorf("job %q in folder %s", job.ID, filepath.Base(dir))
	}
	return &job, nil
}

// ReadExit reads how the job in folder dir ended. The error wraps fs.ErrNotExist if it has not ended.
func ReadExit(dir string) (remote.Exit, error) {
	var exit remote.Exit
	err := readJSON(filepath.Join(dir, ExitName), &exit)
	return exit, err
}

// ParseExit parses an exit.json from a host. It returns Lost if the text is invalid, or claims Exited without the
// signature of the job's key. It drops a wrong MAC.
func ParseExit(text []byte, seal remote.Seal) remote.Exit {
	var exit remote.Exit
	err := json.Unmarshal(text, &exit)
	if err == nil && !exit.End.Known() {
		err = fmt.Errorf("end %.50q", exit.End)
	}
	if err != nil {
		exit = remote.Exit{End: remote.Lost, Text: fmt.Sprintf("%s cannot be read: %v", ExitName, err)}
	}
	if !seal.Signed(exit) {
		exit.Lines, exit.MAC = 0, ""
		if seal.Key != "" && exit.End == remote.Exited {
			exit = remote.Exit{End: remote.Lost, Text: "the agent is gone and has not signed its " + ExitName,
				Hint: "another program has written to its folder: fisub help trust"}
		}
	}
	exit.Text, exit.Hint = plain.Brief(exit.Text, 1000), plain.Brief(exit.Hint, 1000)
	return exit
}

func readJSON(name string, v any) error {
	f, err := plain.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxJob+1))
	if err != nil {
		return err
	}
	if len(data) > maxJob {
		return fmt.Errorf("%s: more than %d MiB", name, maxJob>>20)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// writeJSON writes v to name atomically. If once is set, it leaves an existing file unchanged.
func writeJSON(name string, v any, once bool) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	data = append(data, '\n')
	if !once {
		return cache.WriteFile(name, data, 0o600)
	}
	tmp := filepath.Join(filepath.Dir(name), "."+rand.Text())
	defer os.Remove(tmp)
	if err := cache.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	_ = os.Link(tmp, name)
	if _, err := os.Lstat(name); err == nil {
		return nil
	}
	return os.Rename(tmp, name) // the file system has no hard links
}
