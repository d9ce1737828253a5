package app

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"fisub/internal/git"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/ui"
	"fisub/scaffold"
	"fisub/workloads"
)

// languageTexts describe the languages that init knows.
var languageTexts = map[trace.Language]string{
	trace.CUDA:   "kernel.cu, built by nvcc, exported through TVM-FFI; fisub needs no Python for it",
	trace.Triton: "kernel.py with @triton.jit kernels; running it takes a Python with torch and triton",
	trace.Python: "kernel.py in PyTorch; running it takes a Python with torch",
}

func (a *app) initCommand() *cli.Command {
	return &cli.Command{
		Name:      "init",
		Usage:     "make a new submission: config, kernel, .gitignore and a CI workflow",
		ArgsUsage: "DIR",
		Description: "On a terminal fisub asks for what the flags leave open. The kernel is correct and plain, so that check, local\n" +
			"and pack pass as it stands. There is one for each of the contest's definitions.\n" +
			"Files that exist are never changed without --force.\n\n" +
			"   fisub init my-kernel\n" +
			"   fisub init --definition gdn_decode_qk4_v8_d128_k_last --language triton --author me .\n" +
			"   fisub -C my-kernel local",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "definition", Usage: "the definition `NAME`: one of the contest's"},
			&cli.StringFlag{Name: "language", Usage: "write the kernel in `LANGUAGE`: " + languageNames(), DefaultText: "cuda"},
			&cli.StringFlag{Name: "author", Usage: "the author's `NAME`", DefaultText: "git's user.name"},
			&cli.StringFlag{Name: "name", Usage: "the solution's `NAME`", DefaultText: "the folder's"},
			&cli.BoolFlag{Name: "force", Usage: "replace files that exist with other content"},
		},
		Action: a.init,
	}
}

func languageNames() string {
	var names []string
	for _, l := range scaffold.Languages {
		names = append(names, string(l))
	}
	return strings.Join(names, ", ")
}

func (a *app) init(c *cli.Context) error {
	if c.NArg() != 1 {
		return usage("fisub init DIR; . is this folder", "init: got %d arguments, want a folder", c.NArg())
	}
	if c.Args().First() == "" {
		return usage("fisub init DIR; . is this folder", "init: the folder's name is empty")
	}
	dir := path(c, c.Args().First())
	if st, err := os.Stat(dir); err == nil && !st.IsDir() {
		return usage("name a folder", "%s: not a folder", dir)
	}
	data, err := openDataset(c)
	if err != nil {
		return err
	}
	opts := scaffold.Options{Version: revision()}
	if err := a.answers(c, data, dir, &opts); err != nil {
		return err
	}
	sets, err := data.Sets(opts.Definition.Name)
	if err != nil {
		return invalid(err)
	}
	for _, s := range sets {
		if s != workloads.DefaultSet {
			opts.Set = s
		}
		if strings.HasPrefix(s, "contest") {
			break
		}
	}
	p, err := scaffold.New(opts)
	if errors.Is(err, scaffold.ErrNoKernel) {
		return usage("begin with the config.toml of another submission, and with the definition's reference", "%w", err)
	}
	if err != nil {
		return invalid(err)
	}
	root := repository(dir)
	if root != "" {
		p.Drop(scaffold.Workflow)
		a.term.Note("%s: left out: GitHub takes workflows from the root of the repository, %s", scaffold.Workflow, relative(root))
	}
	done, err := p.Write(dir, c.Bool("force"))
	var conflict *scaffold.ConflictError
	if errors.As(err, &conflict) {
		var faults []error
		lines := strings.Split(conflict.Error(), "\n")
		for i, line := range lines {
			fault := &usageError{err: errors.New(line)}
			if i == len(lines)-1 {
				fault.hint = "--force replaces files of that name; or name another folder"
			}
			faults = append(faults, fault)
		}
		return errors.Join(faults...)
	}
	if err != nil {
		return err
	}
	return a.initialised(c, dir, opts, p, done)
}

// initialised prints what was written and what comes next.
func (a *app) initialised(c *cli.Context, dir string, opts scaffold.Options, p *scaffold.Project, done []string) error {
	command := []string{"fisub"}
	if data := globalString(c, "dataset"); data != "" {
		command = append(command, "--dataset", plain.Word(data))
	}
	if filepath.Clean(dir) != "." {
		command = append(command, "-C", plain.Word(relative(dir)))
		if data := globalString(c, "dataset"); data != "" {
			if abs, err := filepath.Abs(path(c, data)); err == nil {
				command[2] = plain.Word(abs) // -C moves relative paths
			}
		}
	}
	var next []string
	for _, verb := range []string{"check", "local", "pack"} {
		next = append(next, strings.Join(append(slices.Clone(command), verb), " "))
	}
	if globalBool(c, "json") {
		files := []map[string]any{}
		for i, f := range p.Files {
			files = append(files, map[string]any{"path": f.Path, "status": done[i], "bytes": len(f.Content)})
		}
		return writeJSON(a.stdout, map[string]any{"dir": dir, "definition": opts.Definition.Name, "language": opts.Language, "name": opts.Name,
			"author": opts.Author, "files": files, "next": next})
	}
	for i, f := range p.Files {
		fmt.Fprintf(a.stdout, "%-10s  %s\n", done[i], filepath.Join(relative(dir), filepath.FromSlash(f.Path)))
	}
	fmt.Fprintf(a.stdout, "next\n")
	for _, line := range next {
		fmt.Fprintf(a.stdout, "  %s\n", line)
	}
	return nil
}

// revision names this fisub for a build from source: the commit that it was built from, else its version's tag.
func revision() string {
	if hash, _, _ := strings.Cut(commit, "-"); hash != "" {
		return hash
	}
	return "v" + Version
}

// repository is the root of the git repository that dir lies in below its root; "" where it is a root itself or in none.
func repository(dir string) string {
	if abs, err := filepath.Abs(dir); err != nil || git.Root(abs) == abs {
		return ""
	}
	return git.Root(dir)
}

// answers fills opts from the flags, and on a terminal from questions about what they leave open.
func (a *app) answers(c *cli.Context, data *workloads.Dataset, dir string, opts *scaffold.Options) error {
	q := a.questions(c)
	var err error
	name := c.String("definition")
	switch {
	case c.IsSet("definition"):
		if opts.Definition, err = data.Definition(name); err != nil {
			return invalid(fmt.Errorf("--definition: %w", err))
		}
	case q == nil:
		return usage("one of "+strings.Join(withKernel(data.Definitions()), ", "), "--definition: not given")
	}

	opts.Language = trace.Language(cmp.Or(c.String("language"), string(trace.CUDA)))
	if !slices.Contains(scaffold.Languages, opts.Language) {
		return usage("one of "+languageNames(), "--language: there is no template for %q", opts.Language)
	}

	for _, text := range []struct {
		flag    string
		to      *string
		missing func() string
	}{
		{"author", &opts.Author, func() string { return gitUser(c.Context, dir) }},
		{"name", &opts.Name, func() string { return folderName(dir) }},
	} {
		if *text.to = c.String(text.flag); !c.IsSet(text.flag) {
			*text.to = text.missing()
			continue
		}
		if err := scaffold.CheckText(*text.to); err != nil {
			return usage("", "--%s %q: %w", text.flag, *text.to, err)
		}
	}
	if q == nil {
		if opts.Author == "" {
			return usage("--author NAME, or git config --global user.name NAME", "--author: not given, and git has no user.name")
		}
		return nil
	}

	if opts.Definition == nil {
		if opts.Definition, err = q.definition(data); err != nil {
			return err
		}
	}
	if !c.IsSet("language") {
		if opts.Language, err = q.language(); err != nil {
			return err
		}
	}
	if !c.IsSet("author") {
		if opts.Author, err = q.text("author", opts.Author); err != nil {
			return err
		}
	}
	if !c.IsSet("name") {
		if opts.Name, err = q.text("name of the solution", opts.Name); err != nil {
			return err
		}
	}
	return nil
}

// gitUser is git's user.name as seen from dir; "" where there is none that can be an author.
func gitUser(ctx context.Context, dir string) string {
	name := git.UserName(ctx, dir)
	if scaffold.CheckText(name) != nil {
		return ""
	}
	return name
}

// folderName is a name for a solution in dir.
func folderName(dir string) string {
	abs, err := filepath.Abs(dir)
	if err != nil {
		abs = dir
	}
	name := strings.Trim(regexp.MustCompile(`[^A-Za-z0-9_.-]+`).ReplaceAllString(filepath.Base(abs), "-"), "-.")
	return cmp.Or(name, "kernel")
}

// withKernel gives the names of definitions with a kernel to begin from.
func withKernel(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !scaffold.Known(name) })
}

// A questioner asks on a terminal.
type questioner struct {
	ctx   context.Context
	term  *ui.Terminal
	lines <-chan string // closed at the end of the input
}

// questions returns nil where nobody can be asked: stdin or stderr is no terminal, or a program wants JSON.
func (a *app) questions(c *cli.Context) *questioner {
	in, ok := a.stdin.(*os.File)
	if !ok || !ui.IsTerminal(in) || !ui.IsTerminal(a.stderr) || globalBool(c, "json") {
		return nil
	}
	lines := make(chan string)
	go func() {
		defer close(lines)
		r := bufio.NewReader(io.LimitReader(in, 1<<20))
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				return // half a line is no answer
			}
			select {
			case lines <- strings.TrimSpace(line):
			case <-c.Context.Done():
				return
			}
		}
	}()
	return &questioner{c.Context, a.term, lines}
}

// ask asks until accept takes the answer; an empty one is the fallback, where there is one.
func (q *questioner) ask(question, fallback string, accept func(answer string) error) error {
	for {
		if fallback != "" {
			fmt.Fprintf(q.term.Err, "%s [%s]: ", question, fallback)
		} else {
			fmt.Fprintf(q.term.Err, "%s: ", question)
		}
		var answer string
		select {
		case <-q.ctx.Done():
			return q.ctx.Err()
		case line, open := <-q.lines:
			if !open {
				fmt.Fprintln(q.term.Err)
				return usage("answer the questions, or give the flags: fisub init --help", "init: the input ended before %q was answered", question)
			}
			answer = cmp.Or(line, fallback)
		}
		err := accept(answer)
		if err == nil {
			return nil
		}
		text, hint := explain(err)
		fmt.Fprintf(q.term.Err, "  %s\n", text)
		if hint != "" {
			fmt.Fprintf(q.term.Err, "  %s\n", hint)
		}
	}
}

// choose lists what can be answered and asks for one, by number or by name; find finds a name, or says what is wrong with it.
func (q *questioner) choose(question string, names []string, describe func(string) string, fallback string, find func(name string) error) error {
	width := 0
	for _, n := range names {
		width = max(width, len(n))
	}
	for i, n := range names {
		fmt.Fprintf(q.term.Err, "%3d  %-*s  %s\n", i+1, width, n, describe(n))
	}
	return q.ask(question+", by number or name", fallback, func(answer string) error {
		if n, err := strconv.Atoi(answer); err == nil {
			if n < 1 || n > len(names) {
				return fmt.Errorf("%d: not a number from 1 to %d", n, len(names))
			}
			answer = names[n-1]
		}
		if answer == "" {
			return errors.New("an answer is needed")
		}
		return find(answer)
	})
}

func (q *questioner) definition(data *workloads.Dataset) (def *trace.Definition, err error) {
	names := withKernel(data.Definitions())
	describe := func(name string) string {
		d, err := data.Definition(name)
		if err != nil || d.Description == nil {
			return ""
		}
		line, _, _ := strings.Cut(plain.Line(strings.TrimSpace(*d.Description)), ". ")
		line, _, _ = strings.Cut(line, ": ")
		if r := []rune(line); len(r) > 60 {
			line = string(r[:57]) + "..."
		}
		return strings.TrimSuffix(line, ".")
	}
	err = q.choose("definition", names, describe, "", func(name string) (err error) {
		def, err = data.Definition(name)
		return err
	})
	return def, err
}

func (q *questioner) language() (l trace.Language, err error) {
	var names []string
	for _, l := range scaffold.Languages {
		names = append(names, string(l))
	}
	describe := func(name string) string { return languageTexts[trace.Language(name)] }
	err = q.choose("language", names, describe, string(trace.CUDA), func(name string) error {
		if l = trace.Language(strings.ToLower(name)); !slices.Contains(scaffold.Languages, l) {
			return fmt.Errorf("%s: there is no template for it; one of %s", name, languageNames())
		}
		return nil
	})
	return l, err
}

func (q *questioner) text(what, fallback string) (text string, err error) {
	err = q.ask(what, fallback, func(answer string) error {
		text = answer
		return scaffold.CheckText(answer)
	})
	return text, err
}
