package project

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"fisub/internal/config"
	"fisub/internal/event"
	"fisub/internal/git"
	"fisub/internal/usage"
	"fisub/workloads"
)

// A Source is a solution for compare: packed, in a folder with a config, or in a git revision of the submission.
type Source struct {
	Arg string
	*Submission
	Git     *event.Git // the revision; nil for files and folders
	Variant string     // the values of its constants, "TILE=16 STAGES=2", else ""
}

// ReadSource reads the solution named by arg. It returns nil without an error if arg names none.
func (p *Project) ReadSource(ctx context.Context, arg string, data *workloads.Dataset) (*Source, error) {
	if strings.HasSuffix(arg, ".json") {
		s, err := loadPacked(p.Path(arg), p.Root(), data)
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
	return &Source{Arg: arg, Submission: s, Git: &event.Git{Commit: commit}}, nil
}

// loadRevision loads the submission of a config in a checkout. A link out of the checkout is an error.
func loadRevision(checkout, file string, data *workloads.Dataset) (*Submission, error) {
	if !filepath.IsLocal(file) {
		return nil, fmt.Errorf("%s: not in the repository", file)
	}
	return LoadSources(filepath.Join(checkout, file), data)
}
