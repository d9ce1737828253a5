// Package runs keeps run folders: .fisub/runs/<run id>/ with run.json (what ran, where), events.jsonl, traces.jsonl
// (the official trace lines), samples.jsonl (every timing) and log/<workload>.log. All files are written from the
// event stream, event by event, so a killed run loses at most the workload in flight. Files read from a folder are
// not trusted.
package runs

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"fisub/internal/cache"
	"fisub/internal/event"
	"fisub/internal/hint"
	"fisub/internal/plain"
	"fisub/internal/trace"
)

// Dir is the folder of all runs, relative to the project's root.
const Dir = ".fisub/runs"

// The files of a run folder.
const (
	runFile     = "run.json"
	eventsFile  = "events.jsonl"
	tracesFile  = "traces.jsonl"
	samplesFile = "samples.jsonl"
)

// NewID returns an id that sorts by time, to the millisecond, in any time zone.
func NewID(now time.Time) string { return NewIDs(now, 1)[0] }

// NewIDs returns n ids that differ and sort in their order, for runs that begin together.
func NewIDs(now time.Time, n int) []string {
	ids := make([]string, n)
	for i := range ids {
		var b [2]byte
		_, _ = rand.Read(b[:]) // never fails
		at := now.UTC().Add(time.Duration(i) * time.Millisecond)
		ids[i] = fmt.Sprintf("%s-%03d%s", at.Format("20060102-150405"), at.Nanosecond()/1e6, hex.EncodeToString(b[:])[:3])
	}
	return ids
}

// A Folder records one run. Its Record method is an event.Sink. Only one process at a time can open a folder: it
// holds a lock on events.jsonl, which the system releases when the process ends.
type Folder struct {
	path    string
	events  *os.File // nil before the first event
	traces  *os.File
	samples *os.File
	pending map[string][]byte // lines of samples.jsonl for the workloads in flight
	run     *event.Run        // of the last run event; nil before it
	stale   bool              // traces and samples have verdicts that the last events have retracted
}

// NewFolder returns the folder of a new run below root. The first event creates it, so a run that cannot start leaves
// nothing behind.
func NewFolder(root, id string) *Folder {
	return &Folder{path: filepath.Join(root, Dir, id)}
}

// Hold creates or opens the folder. Before the first event, it shows other processes that the run is being prepared.
func (f *Folder) Hold() error {
	err := f.openFiles()
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.ENOTDIR) {
		return hint.Wrap(err, "runs are stored in "+Dir+", next to config.toml: make it writable, or work in a copy")
	}
	return err
}

func (f *Folder) openFiles() (err error) {
	if err := os.MkdirAll(filepath.Join(f.path, "log"), 0o755); err != nil {
		return err
	}
	open := func(name string) (*os.File, error) {
		return plain.OpenFile(filepath.Join(f.path, name), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o644)
	}
	if f.events, err = open(eventsFile); err != nil {
		return err
	}
	if !lock(f.events, syscall.LOCK_EX) {
		return fmt.Errorf("run %s: %w", filepath.Base(f.path), ErrRunning)
	}
	if f.traces, err = open(tracesFile); err == nil {
		f.samples, err = open(samplesFile)
	}
	return err
}

// lock reports whether it got the lock, or the file system has no locks. For the exclusive lock it waits up to 200 ms
// for readers, which hold a shared one briefly.
func lock(f *os.File, how int) bool {
	for end := time.Now().Add(200 * time.Millisecond); ; time.Sleep(5 * time.Millisecond) {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		if errors.Is(err, syscall.EINTR) || errors.Is(err, syscall.EWOULDBLOCK) && how == syscall.LOCK_EX &&
			time.Now().Before(end) {
			continue
		}
		return !errors.Is(err, syscall.EWOULDBLOCK)
	}
}

// Path returns the path of the folder.
func (f *Folder) Path() string { return f.path }

// Close closes the files.
func (f *Folder) Close() error {
	var errs []error
	if f.stale {
		errs = append(errs, f.Order())
	}
	for _, file := range []*os.File{f.events, f.traces, f.samples} {
		if file != nil {
			errs = append(errs, file.Close())
		}
	}
	return errors.Join(errs...)
}

// Record writes one event and its part of the other files. It writes events.jsonl first, because Resume can rebuild
// the other files from it. The timings of a workload are written with its verdict. Retracted verdicts are removed from
// traces and timings before the next event of another kind, or by Close.
func (f *Folder) Record(e event.Event) error {
	line, err := event.Marshal(e)
	if err != nil {
		return err
	}
	if f.events == nil {
		if err := f.Hold(); err != nil {
			return err
		}
	}
	retracts := e.Finding != nil && e.Finding.Check == event.Contradiction
	if f.stale && !retracts {
		if err := f.Order(); err != nil {
			return err
		}
	}
	if _, err := f.events.Write(line); err != nil {
		return err
	}
	switch {
	case retracts:
		f.stale = true
	case e.Run != nil:
		f.run = e.Run
		return f.writeRun("")
	case e.Done != nil && e.Done.Secret != "" && f.run != nil:
		return f.writeRun(e.Done.Secret)
	case e.Started != nil:
		delete(f.pending, e.Workload)
	case e.Samples != nil:
		if f.pending == nil {
			f.pending = map[string][]byte{}
		}
		f.pending[e.Workload], err = sampleLine(e.Workload, e.Samples)
		return err
	case e.Evaluated != nil:
		if _, err := f.samples.Write(f.pending[e.Workload]); err != nil {
			return err
		}
		delete(f.pending, e.Workload)
		if _, err := f.traces.Write(officialLine(e.Evaluated)); err != nil {
			return err
		}
		return errors.Join(f.traces.Sync(), f.writeLog(e.Workload, e.Evaluated.Log()))
	case e.Type == event.TypeFailed && e.Message != nil:
		return f.writeLog(e.Workload, e.Message.Log)
	}
	return nil
}

// writeRun writes run.json from the last run event, with the secret if the run has ended.
func (f *Folder) writeRun(secret string) error {
	r := *f.run
	r.Secret = secret
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return cache.WriteFile(filepath.Join(f.path, runFile), append(data, '\n'), 0o644)
}

func officialLine(e *event.Evaluated) []byte { return append(e.Trace.JSON(trace.Compact), '\n') }

// A sampleRow is a line of samples.jsonl.
type sampleRow struct {
	Workload string `json:"workload"`
	*event.Samples
}

func sampleLine(uuid string, s *event.Samples) ([]byte, error) {
	data, err := json.Marshal(sampleRow{uuid, s})
	return append(data, '\n'), err
}

func (f *Folder) writeLog(uuid, log string) error {
	if log == "" {
		return nil
	}
	return plain.WriteFile(filepath.Join(f.path, "log", FileName(uuid)+".log"), []byte(log), 0o644)
}

// FileName returns a file name for a uuid, which may be any text.
func FileName(uuid string) string {
	clean := strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '-' || r == '_' {
			return r
		}
		return '_'
	}, uuid)
	if clean != uuid || len(clean) > 100 {
		clean = clean[:min(len(clean), 60)] + "-" + cache.Key(uuid)
	}
	return clean
}

// An UnknownError means that an id matches no run, or more than one.
type UnknownError struct {
	ID      string
	Matches []string // the runs whose id begins with ID; may be empty
}

func (e *UnknownError) Error() string {
	if len(e.Matches) == 0 {
		return fmt.Sprintf("no run %q", e.ID)
	}
	return fmt.Sprintf("run %q is ambiguous: %s", e.ID, strings.Join(e.Matches, ", "))
}

// Advice returns the hint of the error.
func (e *UnknownError) Advice() string {
	return "a run id, its beginning, last, last~1 or profile; fisub runs ls lists them; -C DIR is for a project in " +
		"another folder"
}

// recent matches the names of the newest runs and profiles.
var recent = regexp.MustCompile(`^(last|profile)(?:~(\d{1,6}))?$`)

// Find returns the id of the run below root that begins with prefix. "last" is the newest run, "last~1" the one
// before it; "profile" and "profile~1" are the newest folders of fisub profile.
func Find(root, prefix string) (string, error) {
	ids, err := IDs(root)
	if err != nil {
		return "", err
	}
	if slices.Contains(ids, prefix) {
		return prefix, nil
	}
	if m := recent.FindStringSubmatch(prefix); m != nil {
		n, _ := strconv.Atoi(m[2])
		for _, id := range slices.Backward(ids) {
			if IsProfile(filepath.Join(root, Dir, id)) != (m[1] == "profile") {
				continue
			}
			if n == 0 {
				return id, nil
			}
			n--
		}
		return "", &UnknownError{ID: prefix}
	}
	ids = slices.DeleteFunc(ids, func(id string) bool { return !strings.HasPrefix(id, prefix) })
	if len(ids) != 1 || prefix == "" {
		return "", &UnknownError{ID: prefix, Matches: ids}
	}
	return ids[0], nil
}

// The files of fisub profile: the report of Nsight Compute, and its figures. Their folder is not a run.
const (
	ProfileName = "profile.ncu-rep"
	FiguresName = "profile.json"
)

// IsProfile reports whether folder is one of fisub profile.
func IsProfile(folder string) bool {
	return slices.ContainsFunc([]string{ProfileName, FiguresName}, func(name string) bool {
		_, err := os.Stat(filepath.Join(folder, name))
		return err == nil
	})
}

// IDs lists the runs below root, oldest first. Folders without a run's name, such as backup copies, sort before all
// others, so none is ever the last run.
func IDs(root string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(root, Dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		if e.IsDir() {
			ids = append(ids, e.Name())
		}
	}
	dated := regexp.MustCompile(`^[0-9]{8}-`)
	rank := func(id string) int { return len(dated.FindString(id)) }
	slices.SortStableFunc(ids, func(a, b string) int { return rank(a) - rank(b) })
	return ids, nil
}

// Remove deletes the run folder at path. A list of runs never sees it half deleted. The error wraps ErrRunning if a
// process is writing the run.
func Remove(path string) error {
	id := filepath.Base(path)
	if f, err := plain.Open(filepath.Join(path, eventsFile)); err == nil {
		defer f.Close()
		if !lock(f, syscall.LOCK_EX) {
			return fmt.Errorf("run %s: %w", id, ErrRunning)
		}
	}
	gone := filepath.Join(filepath.Dir(filepath.Dir(path)), ".removed-"+id)
	if err := os.Rename(path, gone); err != nil {
		return err
	}
	return os.RemoveAll(gone)
}
