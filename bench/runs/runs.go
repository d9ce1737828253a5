// Package runs keeps run folders: .fisub/runs/<run id>/ with run.json (what ran, where), events.jsonl, traces.jsonl (the
// official trace lines), samples.jsonl (every single timing) and log/<workload>.log. All of them are renderings of the
// event stream, written event by event, so that a killed run loses at most the workload in flight.
package runs

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fisub/internal/cache"
	"fisub/internal/event"
	"fisub/internal/trace"
)

// Dir is the folder of all runs, relative to the project's root.
const Dir = ".fisub/runs"

// NewID returns an id that sorts by time, to the millisecond.
func NewID(now time.Time) string {
	var b [2]byte
	_, _ = rand.Read(b[:]) // never fails
	return fmt.Sprintf("%s-%03d%s", now.Format("20060102-150405"), now.Nanosecond()/1e6, hex.EncodeToString(b[:])[:3])
}

// A Folder records one run. Its Record method is an event.Sink.
type Folder struct {
	path    string
	resumed bool
	events  *os.File // nil before the first event
	samples *os.File
}

// New returns the folder of a new run below root. It is made with the first event, so that a run that cannot start leaves
// nothing behind.
func New(root, id string) *Folder {
	return &Folder{path: filepath.Join(root, Dir, id)}
}

func (f *Folder) open() (err error) {
	if err := os.MkdirAll(filepath.Join(f.path, "log"), 0o755); err != nil {
		return err
	}
	if f.events, err = os.OpenFile(filepath.Join(f.path, "events.jsonl"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
		return err
	}
	f.samples, err = os.OpenFile(filepath.Join(f.path, "samples.jsonl"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	return err
}

// Path is the folder itself.
func (f *Folder) Path() string { return f.path }

// Close closes the files.
func (f *Folder) Close() error {
	var errs []error
	for _, file := range []*os.File{f.events, f.samples} {
		if file != nil {
			errs = append(errs, file.Close())
		}
	}
	return errors.Join(errs...)
}

// Record writes one event, and what it adds to the other files.
func (f *Folder) Record(e event.Event) error {
	line, err := event.Marshal(e)
	if err != nil {
		return err
	}
	if f.events == nil {
		if err := f.open(); err != nil {
			return err
		}
	}
	if _, err := f.events.Write(line); err != nil {
		return err
	}
	switch {
	case e.Run != nil && !f.resumed:
		data, err := json.MarshalIndent(e.Run, "", "  ")
		if err != nil {
			return err
		}
		return cache.WriteFile(filepath.Join(f.path, "run.json"), append(data, '\n'), 0o644)
	case e.Samples != nil:
		data, err := json.Marshal(struct {
			Workload string `json:"workload"`
			*event.Samples
		}{e.Workload, e.Samples})
		if err != nil {
			return err
		}
		_, err = f.samples.Write(append(data, '\n'))
		return err
	case e.Evaluated != nil:
		t, _, err := trace.DecodeTrace(e.Evaluated.Trace)
		if err != nil {
			return err
		}
		if err := trace.AppendTraces(filepath.Join(f.path, "traces.jsonl"), t); err != nil {
			return err
		}
		return f.writeLog(e.Workload, e.Evaluated.Log)
	}
	return nil
}

func (f *Folder) writeLog(uuid, log string) error {
	if log == "" {
		return nil
	}
	return os.WriteFile(filepath.Join(f.path, "log", fileName(uuid)+".log"), []byte(log), 0o644)
}

// fileName makes a file name of a uuid, which may be any text.
func fileName(uuid string) string {
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

// An UnknownError says that no run, or more than one, has an id.
type UnknownError struct {
	ID      string
	Matches []string // the runs whose id begins with ID; empty where none does
}

func (e *UnknownError) Error() string {
	if len(e.Matches) == 0 {
		return fmt.Sprintf("no run %q", e.ID)
	}
	return fmt.Sprintf("run %q is ambiguous: %s", e.ID, strings.Join(e.Matches, ", "))
}

// Find returns the id of the run below root whose id begins with prefix; "last" is the newest.
func Find(root, prefix string) (string, error) {
	ids, err := IDs(root)
	if err != nil {
		return "", err
	}
	if prefix == "last" && len(ids) > 0 {
		return ids[len(ids)-1], nil
	}
	if slices.Contains(ids, prefix) {
		return prefix, nil
	}
	ids = slices.DeleteFunc(ids, func(id string) bool { return !strings.HasPrefix(id, prefix) })
	if len(ids) != 1 || prefix == "" {
		return "", &UnknownError{ID: prefix, Matches: ids}
	}
	return ids[0], nil
}

// IDs lists the runs below root, oldest first.
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
	return ids, nil
}

// Resume opens the folder of run id and returns what it ran and the traces it has. A line that a killed run left
// unfinished is cut off.
func Resume(root, id string) (*Folder, *event.Run, []*trace.Trace, error) {
	path := filepath.Join(root, Dir, id)
	data, err := os.ReadFile(filepath.Join(path, "run.json"))
	if err != nil {
		return nil, nil, nil, err
	}
	var run event.Run
	if err := json.Unmarshal(data, &run); err != nil {
		return nil, nil, nil, fmt.Errorf("%s: %w", filepath.Join(path, "run.json"), err)
	}
	for _, name := range []string{"events.jsonl", "traces.jsonl", "samples.jsonl"} {
		if err := cutTail(filepath.Join(path, name)); err != nil {
			return nil, nil, nil, err
		}
	}
	traces, _, err := trace.ReadTraces(filepath.Join(path, "traces.jsonl"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil, err
	}
	return &Folder{path: path, resumed: true}, &run, traces, nil
}

// cutTail truncates the file behind its last newline.
func cutTail(path string) error {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	whole := bytes.LastIndexByte(data, '\n') + 1
	if whole == len(data) {
		return nil
	}
	return os.Truncate(path, int64(whole))
}

// Events reads the events of a run, in order; it stops without error at an unfinished last line.
func Events(root, id string, yield func(event.Event) error) error {
	path := filepath.Join(root, Dir, id, "events.jsonl")
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	r := bufio.NewReader(f)
	for n := 1; ; n++ {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return nil
		}
		var e event.Event
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("%s:%d: %w", path, n, err)
		}
		if err := yield(e); err != nil {
			return err
		}
	}
}
