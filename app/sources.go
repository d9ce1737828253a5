package app

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"fisub/bench"
	"fisub/bench/runs"
	"fisub/internal/config"
	"fisub/internal/event"
	"fisub/internal/git"
	"fisub/internal/plain"
	"fisub/workloads"
)

// A source is what compare can run: a packed solution, a folder with a config, or a revision of the submission in git.
type source struct {
	arg string
	*submission
	git *event.Git // of a revision; nil: that of the folder
}

// readSource reads the solution that arg names. It is nil, without an error, where arg names none.
func (a *app) readSource(c *cli.Context, arg string, data *workloads.Dataset) (*source, error) {
	if strings.HasSuffix(arg, ".json") {
		s, err := loadPacked(path(c, arg), runsRoot(c), data)
		if err != nil {
			return nil, err
		}
		a.warn(s.warnings)
		return &source{arg: arg, submission: s}, nil
	}
	if st, err := os.Stat(filepath.Join(path(c, arg), config.Name)); err == nil && st.Mode().IsRegular() {
		s, err := loadSources(filepath.Join(path(c, arg), config.Name), data)
		return &source{arg: arg, submission: s}, err
	}
	rev, dir, named := strings.Cut(arg, ":")
	root := runsRoot(c)
	repo, err := git.Open(c.Context, root)
	if err != nil || rev == "" {
		return nil, nil
	}
	commit, err := repo.Commit(c.Context, rev)
	if err != nil || commit == "" {
		return nil, err
	}
	if !named {
		dir, _ = repo.Relative(root)
	}
	checkout, remove, err := repo.Checkout(c.Context, commit)
	if err != nil {
		return nil, err
	}
	defer remove()
	s, err := loadRevision(checkout, filepath.Join(dir, filepath.Base(configPath(c))), data)
	if err != nil {
		text := strings.ReplaceAll(err.Error(), checkout+string(filepath.Separator), "")
		return nil, invalid(fmt.Errorf("%s: %s", arg, text))
	}
	s.root = root
	return &source{arg: arg, submission: s, git: &event.Git{Commit: commit}}, nil
}

// loadRevision loads the submission of a config below a checkout. Links out of that are an error.
func loadRevision(checkout, file string, data *workloads.Dataset) (*submission, error) {
	if !filepath.IsLocal(file) {
		return nil, fmt.Errorf("%s: not in the repository", file)
	}
	s, err := loadSources(filepath.Join(checkout, file), data)
	if err != nil {
		return nil, err
	}
	for _, name := range append(sourceFiles(s), s.cfg.SourceDir()) {
		if git.LinkOut(checkout, name) != "" {
			return nil, fmt.Errorf("%s: a link out of the repository", name)
		}
	}
	return s, nil
}

// runTogether runs the sources now, with their trials taken in turn on one device, and gives their runs, named A, B, C.
func (a *app) runTogether(c *cli.Context, sources []*source) ([]*runs.Run, error) {
	first, last := sources[0], sources[len(sources)-1]
	for _, s := range sources[1:] {
		if first.def.Name != s.def.Name {
			return nil, usage("", "compare: %s is of definition %s, %s of %s", first.arg, first.def.Name, s.arg, s.def.Name)
		}
	}
	u, err := a.newSetup(c, last.submission, nil)
	if err != nil {
		return nil, err
	}
	var entries []bench.Entry
	var folders []*runs.Folder
	var streams []*event.Stream
	for i, s := range sources {
		time.Sleep(2 * time.Millisecond) // so that the run of A is the older one
		run := u.describe(c.Context, s.submission)
		if s.git != nil {
			run.Git = s.git
		}
		folder := runs.New(runsRoot(c), run.ID)
		defer folder.Close()
		folders = append(folders, folder)
		name := string(rune('A' + i))
		stream := event.NewStream(folder.Record, a.term.Progress(name, s == last))
		streams = append(streams, stream)
		a.term.Note("running    %s: %s, %s %s", name, plain.Line(s.arg), plain.Line(s.sol.Name), plain.Short(run.ContentHash))
		entries = append(entries, bench.Entry{Solution: s.sol, Events: stream, Run: run})
	}
	_, err = bench.Together(c.Context, u.shared(first.submission), entries)
	if err != nil {
		return nil, machine(err)
	}
	var read []*runs.Run
	for i, f := range folders {
		if err := streams[i].Err(); err != nil {
			return nil, err
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
		r, err := runs.Read(f.Path())
		if err != nil {
			return nil, err
		}
		read = append(read, r)
	}
	return read, nil
}
