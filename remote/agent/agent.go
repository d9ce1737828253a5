// Package agent is what runs on the host, the same for every provider: it takes one job from files that are there to an
// exit.json, and hands the job's event stream on. It is not for bringing files to the host, nor for knowing what a job
// computes.
//
// Below a work folder W of one user on one host lie
//
//	W/store/<sha256>    contents of bundle files, never changed: 0444, executables 0555
//	W/jobs/<job id>/    one job; its folder
//	W/cache/            FISUB_CACHE of the jobs
//
// and in a job's folder the files that the constants name, and bundle/, the files of the job under their names.
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

// The files of a job's folder.
const (
	JobName    = "job.json"     // remote.Job, written by the provider before the agent starts
	StateName  = "agent.json"   // who runs the job
	EventsName = "events.jsonl" // the program's stdout, signed line by line where the job has a key
	LogName    = "log"          // the program's stderr and the agent's own lines
	ExitName   = "exit.json"    // remote.Exit: the job has ended
	StopName   = "stop"         // somebody wants the job to end
	BundleName = "bundle"       // the files of the job
)

// KeepDays is for how many days the store keeps a file that no job uses.
const KeepDays = "30"

// Store is the folder of the contents of files.
func Store(work string) string { return filepath.Join(work, "store") }

// Stored is the file with the content of that hash.
func Stored(work, hash string) string { return filepath.Join(work, "store", hash) }

// Jobs is the folder of the jobs' folders.
func Jobs(work string) string { return filepath.Join(work, "jobs") }

// JobDir is the folder of one job.
func JobDir(work, id string) string { return filepath.Join(work, "jobs", id) }

// FreePrefix stands before the id in the name of a job's folder that Free is removing. One that is still there is what
// a Free that was killed has left: it counts as the job until it is gone.
const FreePrefix = ".free-"

// An Agent is the program's own part of it.
type Agent struct {
	Version string
	GPUs    func() ([]GPU, error) // in the order of their ordinals; nil where the program cannot know
	Self    []string              // command that begins an agent, before "run DIR": the path of the program and "agent"

	detached bool // nobody but Stop is to end it: a signal is a loss, as when the host shuts down
}

// maxJob bounds job.json, and each other small file that is read.
const maxJob = 16 << 20

const alone = "--alone"

// Main runs one command of the agent: args are what follows `fisub agent`. Its errors are for stderr.
//
//	run DIR [--alone]   the job to its end; the error is nil whenever exit.json was written; --alone: as start begins it
//	start DIR           the same, detached; returns when the agent is there
//	tail DIR [--from N] the event stream from byte N to stdout, until the job has ended
//	stop DIR            ends the job and waits for it
//	free DIR            the same, and removes its folder
//	sweep DIR           ends what is left of the processes of a job whose agent is gone
//	look                the GPUs of the host to stdout, as JSON
func (a *Agent) Main(ctx context.Context, args []string, stdout io.Writer) error {
	var from int64
	var err error
	if len(args) == 4 && args[0] == "tail" && args[2] == "--from" {
		if from, err = strconv.ParseInt(args[3], 10, 64); err != nil || from < 0 {
			return fmt.Errorf("agent: --from %q is no offset", args[3])
		}
		args = args[:2]
	}
	if len(args) == 3 && args[0] == "run" && args[2] == alone {
		a.detached, args = true, args[:2]
	}
	if len(args) == 1 && args[0] == "look" {
		gpus, err := a.Look()
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

// ErrHash says that a file does not have the content that its name or the job promises.
var ErrHash = errors.New("wrong hash")

// ReadJob reads the job in folder dir and checks it.
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

// ReadExit reads how the job in folder dir ended; the error wraps fs.ErrNotExist where it has not.
func ReadExit(dir string) (remote.Exit, error) {
	var exit remote.Exit
	err := readJSON(filepath.Join(dir, ExitName), &exit)
	return exit, err
}

// ParseExit reads what a host says to be exit.json. One that cannot be read is as good as none that will come, and so
// is one that says that the program exited, and is not signed although the job has a key. A MAC that is wrong is left
// out.
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
			exit = remote.Exit{End: remote.Lost, Text: "the agent is gone, and did not sign the " + ExitName + " that is there",
				Hint: "something has written to its folder that was not fisub: fisub help trust"}
		}
	}
	exit.Text, exit.Hint = plain.Brief(exit.Text, 1000), plain.Brief(exit.Hint, 1000)
	return exit
}

func readJSON(name string, v any) error {
	f, err := os.Open(name)
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

// writeJSON writes v to name, whole or not at all. Where the file is there already, with once, it stays as it is.
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
	return os.Rename(tmp, name) // a file system without hard links
}
