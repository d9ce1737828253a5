package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"fisub/bench"
	"fisub/bench/machine"
	"fisub/bench/runs"
	"fisub/internal/config"
	"fisub/internal/event"
	"fisub/internal/git"
	"fisub/internal/plain"
	"fisub/internal/usage"
	"fisub/workloads"
)

// A Source is what compare can run: a packed solution, a folder with a config, or a revision of the submission in git.
type Source struct {
	Arg string
	*Submission
	git *event.Git // of a revision; nil: that of the folder
}

// ReadSource reads the solution that arg names. It is nil, without an error, where arg names none.
func (p *Project) ReadSource(ctx context.Context, arg string, data *workloads.Dataset) (*Source, error) {
	if strings.HasSuffix(arg, ".json") {
		s, err := LoadPacked(p.Path(arg), p.Root(), data)
		return &Source{Arg: arg, Submission: s}, err
	}
	file := filepath.Join(p.Path(arg), config.Name)
	if st, err := os.Stat(file); err == nil && st.Mode().IsRegular() {
		s, err := LoadSources(file, data)
		return &Source{Arg: arg, Submission: s}, err
	}
	rev, dir, named := strings.Cut(arg, ":")
	repo, err := git.Open(ctx, p.Root())
	if err != nil || rev == "" {
		return nil, nil
	}
	commit, err := repo.Commit(ctx, rev)
	if err != nil || commit == "" {
		return nil, err
	}
	if !named {
		dir, _ = repo.Relative(p.Root())
	}
	checkout, remove, err := repo.Checkout(ctx, commit)
	if err != nil {
		return nil, err
	}
	defer remove()
	s, err := loadRevision(checkout, filepath.Join(dir, filepath.Base(p.ConfigPath())), data)
	if err != nil {
		text := strings.ReplaceAll(err.Error(), checkout+string(filepath.Separator), "")
		return nil, usage.Invalid(fmt.Errorf("%s: %s", arg, text))
	}
	s.Root = p.Root()
	return &Source{Arg: arg, Submission: s, git: &event.Git{Commit: commit}}, nil
}

// loadRevision loads the submission of a config below a checkout. Links out of that are an error.
func loadRevision(checkout, file string, data *workloads.Dataset) (*Submission, error) {
	if !filepath.IsLocal(file) {
		return nil, fmt.Errorf("%s: not in the repository", file)
	}
	return LoadSources(filepath.Join(checkout, file), data)
}

// Sides gives the runs that the arguments name, or the sources, which are of one definition.
func (p *Project) Sides(ctx context.Context, args []string, data *workloads.Dataset) (found []*runs.Run,
	sources []*Source, err error) {
	var foundArg string
	for _, arg := range args {
		run, err := p.ReadRun(arg)
		if err == nil {
			found, foundArg = append(found, run), arg
			continue
		}
		var unknown *runs.UnknownError
		if !errors.Is(err, runs.ErrNoRun) && !(errors.As(err, &unknown) && len(unknown.Matches) == 0) {
			return nil, nil, err
		}
		s, sourceErr := p.ReadSource(ctx, arg, data)
		if sourceErr != nil {
			return nil, nil, sourceErr
		}
		if s == nil {
			hint := "a run (fisub runs ls), a packed solution FILE.json, a folder with a config.toml, or a git revision"
			if _, err := git.Open(ctx, p.Root()); err != nil {
				hint += "; revisions cannot be read here: " + plain.Line(plain.First(err.Error()))
			}
			return nil, nil, usage.Errorf(hint, "compare: %w", err)
		}
		sources = append(sources, s)
	}
	if len(found) > 0 && len(sources) > 0 {
		return nil, nil, usage.Errorf("compare runs, or solutions, which are run now, their trials taken in turn",
			"compare: %s is a solution, %s is a run", sources[0].Arg, foundArg)
	}
	return found, sources, sameDefinition(sources)
}

// sameDefinition refuses sources of several definitions.
func sameDefinition(sources []*Source) error {
	for _, s := range sources {
		first := sources[0]
		if first.Definition.Name != s.Definition.Name {
			return usage.Errorf("", "compare: %s is of definition %s, %s of %s", first.Arg, first.Definition.Name, s.Arg,
				s.Definition.Name)
		}
	}
	return nil
}

// DescribeAll says what runs of the sources run, in an order in which that of A is the oldest.
func (u *Setup) DescribeAll(ctx context.Context, sources []*Source) (all []event.Run) {
	for _, s := range sources {
		time.Sleep(2 * time.Millisecond)
		run := u.Describe(ctx, s.Submission)
		if s.git != nil {
			run.Git = s.git
		}
		all = append(all, *run)
	}
	return all
}

// RunTogether runs the sources, which are of one definition, with their trials taken in turn on one device, and gives
// their runs, which are kept below root. begin is called for each, with its letter and its run, and gives what shows
// its events.
func (u *Setup) RunTogether(ctx context.Context, root string, sources []*Source,
	begin func(letter string, s *Source, run *event.Run) event.Sink) ([]*runs.Run, error) {
	u.Profile = u.Profile.InTurn(sources[0].Definition)
	var entries []bench.Entry
	var folders []*runs.Folder
	var streams []*event.Stream
	described := u.DescribeAll(ctx, sources)
	for i, s := range sources {
		run := &described[i]
		folder := runs.New(root, run.ID)
		defer folder.Close()
		stream := event.NewStream(folder.Record, begin(string(rune('A'+i)), s, run))
		folders, streams = append(folders, folder), append(streams, stream)
		entries = append(entries, bench.Entry{Solution: s.Solution, Events: stream, Run: run})
	}
	if _, err := bench.Together(ctx, u.Shared(sources[0].Submission), entries); err != nil {
		return nil, machine.Invalid(err)
	}
	var read []*runs.Run
	for i, f := range folders {
		if err := errors.Join(streams[i].Err(), f.Close()); err != nil {
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
