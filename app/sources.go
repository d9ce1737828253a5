package app

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	slash "path"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"fisub/bench"
	"fisub/bench/runs"
	"fisub/internal/config"
	"fisub/internal/event"
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
	commit, err := gitOutput(c.Context, root, "rev-parse", "--verify", "--quiet", "--end-of-options", rev+"^{commit}")
	if err != nil || rev == "" {
		return nil, nil
	}
	if !named {
		if dir, err = gitOutput(c.Context, root, "rev-parse", "--show-prefix"); err != nil {
			return nil, err
		}
	}
	temp, err := os.MkdirTemp("", "fisub-revision-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(temp)
	name := filepath.Base(configPath(c))
	if err := extract(c.Context, root, commit, slash.Clean("./"+dir), temp, name, "solution"); err != nil {
		return nil, invalid(fmt.Errorf("%s: %w", arg, err))
	}
	s, err := loadSources(filepath.Join(temp, name), data)
	if err != nil {
		return nil, invalid(fmt.Errorf("%s: %w", arg, err))
	}
	s.root = root
	return &source{arg: arg, submission: s, git: &event.Git{Commit: commit}}, nil
}

// gitOutput is what git says in dir, without the newline at its end.
func gitOutput(ctx context.Context, dir string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "git", append([]string{"-C", dir}, args...)...).Output()
	return strings.TrimSuffix(string(out), "\n"), err
}

// maxRevision bounds what is taken out of a revision, in bytes.
const maxRevision = 256 << 20

// extract puts the files and folders of that name, as they are in dir of the commit, below target. Links out of it are
// an error.
func extract(ctx context.Context, repo, commit, dir, target string, names ...string) error {
	tree := commit + ":"
	if dir != "." {
		tree += dir
	}
	root, err := os.OpenRoot(target)
	if err != nil {
		return err
	}
	defer root.Close()
	top, err := gitOutput(ctx, repo, "rev-parse", "--show-toplevel")
	if err != nil {
		return fmt.Errorf("git rev-parse: %w", err)
	}
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", top, "archive", "--format=tar", tree, "--"}, names...)...)
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting git: %w", err)
	}
	err = untar(tar.NewReader(io.LimitReader(out, maxRevision)), root)
	_, _ = io.Copy(io.Discard, out) // so that git can end
	if wait := cmd.Wait(); wait != nil {
		if first, _, _ := strings.Cut(strings.TrimSpace(complaint.String()), "\n"); first != "" {
			return fmt.Errorf("git archive: %s", plain.Line(first))
		}
		return fmt.Errorf("git archive: %w", wait)
	}
	return err
}

func untar(r *tar.Reader, root *os.Root) error {
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := filepath.FromSlash(slash.Clean(h.Name))
		switch h.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(name, 0o755)
		case tar.TypeReg:
			err = write(root, name, r)
		case tar.TypeSymlink:
			if slash.IsAbs(h.Linkname) || !filepath.IsLocal(filepath.Join(filepath.Dir(name), filepath.FromSlash(h.Linkname))) {
				return fmt.Errorf("%s: a link out of the submission", plain.Line(h.Name))
			}
			err = root.Symlink(h.Linkname, name)
		}
		if err != nil {
			return err
		}
	}
}

func write(root *os.Root, name string, r io.Reader) error {
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
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
	var configs []bench.Config
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
		configs = append(configs, u.config(s.submission, run, stream))
	}
	_, err = bench.Together(c.Context, configs...)
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
