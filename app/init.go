package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"fisub/app/scaffold"
	"fisub/internal/git"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/ui"
	"fisub/internal/usage"
	"fisub/project"
	"fisub/workloads"
)

type initOptions struct {
	dir                                string
	definition, language, author, name string
	force                              bool
}

func (a *app) initCommand() *cli.Command {
	var o initOptions
	text := func(to *string, name, help, absent string) cli.Flag {
		f := stringFlag(to, name, help, absent)
		f.Action = func(_ *cli.Context, value string) error {
			if err := scaffold.CheckText(value); err != nil {
				return usage.Errorf("", "--%s %q: %w", name, value, err)
			}
			return nil
		}
		return f
	}
	return &cli.Command{
		Name:      "init",
		Usage:     "create a submission: config, kernel, .gitignore, CI workflow, AGENTS.md",
		ArgsUsage: "[DIR]",
		Flags: []cli.Flag{
			stringFlag(&o.definition, "definition", "name of the `DEFINITION`, one of fisub dataset ls", ""),
			stringFlag(&o.language, "language",
				"write the kernel in `LANGUAGE`: "+strings.Join(scaffold.LanguageNames(), ", "), "cuda"),
			text(&o.author, "author", "the author's `NAME`", "git's user.name"),
			text(&o.name, "name", "the solution's `NAME`", "the folder's"),
			boolFlag(&o.force, "force", "replace existing files"),
		},
		Action: func(c *cli.Context) error {
			o.dir = c.Args().First()
			return a.init(c.Context, o)
		},
	}
}

func (a *app) init(ctx context.Context, o initOptions) error {
	q := a.questions(ctx)
	if o.dir == "" && q == nil {
		return usage.Errorf("fisub init DIR", "init: no folder given")
	} else if o.dir == "" {
		err := q.Ask("folder of the new submission", "my-kernel", func(answer string) error {
			o.dir = answer
			return nil
		})
		if err != nil {
			return unanswered(err)
		}
	}
	dir := a.Path(o.dir)
	if st, err := os.Stat(dir); err == nil && !st.IsDir() {
		return usage.Errorf("name a folder", "%s: not a folder", dir)
	}
	if t, err := (&project.Project{Dir: dir}).Task(); err != nil {
		return err
	} else if t != nil {
		text, err := t.Start()
		if err != nil {
			return usage.Invalid(err)
		}
		opts := scaffold.Options{Definition: t.Definition, Language: trace.Python, Name: "submission"}
		p := &scaffold.Project{Files: []scaffold.File{{Path: filepath.Base(t.Answer), Content: []byte(text)}}}
		return a.create(dir, opts, p, o.force)
	}
	data, err := a.OpenDataset()
	if err != nil {
		return err
	}
	opts, err := a.scaffoldOptions(ctx, o, data, dir, q)
	if err != nil {
		return unanswered(err)
	}
	sets, err := data.Sets(opts.Definition.Name)
	if err != nil {
		return usage.Invalid(err)
	}
	for _, s := range sets {
		switch {
		case s == workloads.EdgeSet:
			opts.Edge = true
		case s != workloads.DefaultSet && !strings.HasPrefix(opts.Set, "contest"):
			opts.Set = s
		}
	}
	p, err := scaffold.New(opts)
	if errors.Is(err, scaffold.ErrNoKernel) {
		return usage.Errorf("start from the config.toml of another submission and the definition's reference", "%w", err)
	}
	if err != nil {
		return usage.Invalid(err)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if root := git.Root(abs); root != "" && root != abs {
		p.Drop(scaffold.Workflow)
		a.term.Note("%s: not written: GitHub reads workflows only in the root of the repository, %s", scaffold.Workflow,
			plain.Relative(root))
	}
	return a.create(dir, opts, p, o.force)
}

// create writes the files of p.
func (a *app) create(dir string, opts scaffold.Options, p *scaffold.Project, force bool) error {
	done, err := p.Write(dir, force)
	if conflict, ok := errors.AsType[*scaffold.ConflictError](err); ok {
		var faults []error
		for _, line := range conflict.Lines {
			faults = append(faults, usage.Errorf("", "%s", line))
		}
		last := len(faults) - 1
		faults[last] = usage.Errorf("use --force to replace the file, or another folder", "%w", faults[last])
		return errors.Join(faults...)
	}
	if err != nil {
		return err
	}
	return a.initialised(dir, opts, p, done)
}

func unanswered(err error) error {
	if errors.Is(err, ui.ErrEnded) {
		return usage.Errorf("answer the questions, or give the flags: fisub init --help", "init: %w", err)
	}
	return err
}

// A newProject is the result of init.
type newProject struct {
	Dir        string         `json:"dir"`
	Definition string         `json:"definition"`
	Language   trace.Language `json:"language"`
	Name       string         `json:"name"`
	Author     string         `json:"author"`
	Files      []newFile      `json:"files"`
	Next       []string       `json:"next"`
}

type newFile struct {
	Path   string `json:"path"`
	Status string `json:"status"`
	Bytes  int    `json:"bytes"`
}

// initialised prints the written files and the next steps.
func (a *app) initialised(dir string, opts scaffold.Options, p *scaffold.Project, done []string) error {
	made := newProject{Dir: dir, Definition: opts.Definition.Name, Language: opts.Language, Name: opts.Name,
		Author: opts.Author, Files: []newFile{}, Next: a.nextLines(dir)}
	if opts.Definition.Python != nil {
		made.Next = made.Next[:len(made.Next)-1] // there is nothing to pack
	}
	for i, f := range p.Files {
		made.Files = append(made.Files, newFile{f.Path, done[i], len(f.Content)})
	}
	if a.json {
		return a.writeJSON(made)
	}
	for _, f := range made.Files {
		a.line(f.Status, "%s", filepath.Join(plain.Relative(dir), filepath.FromSlash(f.Path)))
	}
	for _, f := range made.Files {
		if strings.HasSuffix(f.Path, ".yml") && f.Status != "unchanged" {
			a.line("to do", "set FISUB_SOURCE in %s to the URL of fisub's repository; the workflow needs it",
				filepath.Base(f.Path))
		}
	}
	fmt.Fprintf(a.stdout, "next\n  %s\n", strings.Join(made.Next, "\n  "))
	return nil
}

// nextLines returns the commands to continue with in dir.
func (a *app) nextLines(dir string) (lines []string) {
	command := "fisub"
	data, moved := a.Dataset, filepath.Clean(dir) != "."
	if data != "" {
		if abs, err := filepath.Abs(a.Path(data)); err == nil && moved {
			data = abs // -C changes the base of relative paths
		}
		command += " --dataset " + plain.Word(data)
	}
	if moved {
		command += " -C " + plain.Word(plain.Relative(dir))
	}
	for _, verb := range []string{"check", "local", "pack"} {
		lines = append(lines, command+" "+verb)
	}
	return lines
}

// revision identifies this fisub for a build from source: its commit, else the tag of its version.
func revision() string {
	if hash, _, _ := strings.Cut(commit, "-"); hash != "" {
		return hash
	}
	return "v" + Version
}

// scaffoldOptions returns the options given by flags. On a terminal it asks for the missing ones.
func (a *app) scaffoldOptions(ctx context.Context, o initOptions, data *workloads.Dataset,
	dir string, q *scaffold.Questioner) (opts scaffold.Options, err error) {
	switch {
	case o.definition != "":
		if opts.Definition, err = data.Definition(o.definition); err != nil {
			return opts, usage.Invalid(fmt.Errorf("--definition: %w", err))
		}
	case q == nil:
		return opts, usage.Errorf("one of "+strings.Join(scaffold.WithKernel(data.Definitions()), ", "),
			"missing flag --definition")
	}
	opts.Version, opts.Language = revision(), trace.Language(cmp.Or(o.language, string(trace.CUDA)))
	if !slices.Contains(scaffold.Languages, opts.Language) {
		return opts, usage.Errorf("one of "+strings.Join(scaffold.LanguageNames(), ", "),
			"--language: no template for %q", opts.Language)
	}
	opts.Author, opts.Name = o.author, o.name
	if o.author == "" {
		if opts.Author = git.UserName(ctx, dir); scaffold.CheckText(opts.Author) != nil {
			opts.Author = ""
		}
	}
	if o.name == "" {
		opts.Name = scaffold.FolderName(dir)
	}
	if q == nil {
		if opts.Author == "" {
			return opts, usage.Errorf("--author NAME, or git config --global user.name NAME",
				"missing flag --author, and git has no user.name")
		}
		return opts, nil
	}
	for _, question := range []struct {
		given string
		ask   func() error
	}{
		{o.definition, func() (err error) { opts.Definition, err = q.Definition(data); return err }},
		{o.language, func() (err error) { opts.Language, err = q.Language(); return err }},
		{o.author, func() (err error) { opts.Author, err = q.Text("author", opts.Author); return err }},
		{o.name, func() (err error) { opts.Name, err = q.Text("name of the solution", opts.Name); return err }},
	} {
		if question.given == "" && err == nil {
			err = question.ask()
		}
	}
	return opts, err
}

// questions returns nil if nobody can be asked: stdin or stderr is not a terminal, or --json is set.
func (a *app) questions(ctx context.Context) *scaffold.Questioner {
	in := a.term.Keyboard()
	if in == nil || !ui.IsTerminal(a.stderr) || a.json {
		return nil
	}
	return &scaffold.Questioner{Questions: a.term.Questions(ctx, in)}
}
