// Package preflight finds problems that the contest's pipeline would reject, fail on or silently change: in its
// collector, which looks for submissions in a repository, its packer, its builder and its evaluator. It compiles with
// the contest's flags and runs no submission. It does not judge whether a kernel is correct or fast, and does not
// repeat the checks of a run.
package preflight

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"fisub/internal/config"
	"fisub/internal/git"
	"fisub/internal/hint"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/pack"
	"fisub/project/preflight/source"
	"fisub/workloads"
)

// A Finding is a problem or a remark, with its place and a hint. Path begins with the folder of Options.Config as
// given, or it is the bare path of a packed source.
type Finding = source.Finding

// The severities of a Finding.
const (
	Error   = source.Error
	Warning = source.Warning
	Note    = source.Note
)

// Options name a submission. Either Config or Solution is set.
type Options struct {
	Config   string          // path of its config.toml
	Solution *trace.Solution // a packed solution, instead of a config
	File     string          // path of Solution, for messages
	Dataset  *workloads.Dataset
	Cache    string   // fisub's cache folder, for the toolchain and builds
	Archs    []string // to compile for, such as "sm_100"; if empty, nothing is compiled
	// Remote returns the faults of a table [remote.NAME]; if it is nil, these tables are not checked.
	Remote func(*config.Table) error
	// MustCompile makes a missing toolchain an error.
	MustCompile bool
}

// A Report is the result of checking one submission. A part that could not be read is nil.
type Report struct {
	Findings   []Finding // ordered by place
	Config     *config.Config
	Definition *trace.Definition
	Solution   *trace.Solution
	Packs      bool             // Solution equals the packer's output
	Entries    []pack.Entry     // the source folder, or nil for a packed solution
	Repository *pack.Collection // the contest's view; nil for a packed solution or a config of another name
	Builds     []Build
	Log        string // compiler output of failed builds
}

// A Build is the result of compiling for one arch.
type Build struct {
	Arch      string
	Toolchain string // "" if it was not compiled or does not compile
	Kernels   []CompiledKernel
}

// Count returns the number of findings of a severity.
func (r *Report) Count(s source.Severity) (n int) {
	for _, f := range r.Findings {
		if f.Severity == s {
			n++
		}
	}
	return n
}

// OK reports whether the contest would accept the submission: it has no errors and, if strict, no warnings.
func (r *Report) OK(strict bool) bool {
	return r.Count(Error) == 0 && (!strict || r.Count(Warning) == 0)
}

// Submission checks a whole submission: config, sources, signature and compilation. It returns all findings at once. An
// error concerns this machine or ctx. Without a toolchain, a note reports that nothing was compiled.
func Submission(ctx context.Context, o Options) (*Report, error) {
	c := &checker{Options: o, Report: &Report{}}
	if o.Solution == nil {
		if err := c.config(ctx); err != nil {
			return nil, err
		}
	} else {
		c.Report.Solution, c.Report.Packs = o.Solution, true
		c.packed()
		if err := c.task(ctx); err != nil {
			return nil, err
		}
	}
	if c.Report.Solution != nil {
		c.sources(ctx)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if c.Report.Solution != nil && c.Report.Solution.CheckNames() == nil {
		if err := c.build(ctx); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(c.Findings, func(a, b Finding) int { // findings about the whole first
		return cmp.Or(strings.Compare(a.Path, b.Path), a.Line-b.Line, a.Col-b.Col)
	})
	return c.Report, nil
}

// Sources returns the findings in the sources of sol alone, with bare paths; def may be nil.
func Sources(ctx context.Context, sol *trace.Solution, def *trace.Definition) []Finding {
	return source.Inspect(sol, def, python(ctx, pythonLimit))
}

type checker struct {
	Options
	*Report
}

func (c *checker) add(s source.Severity, code, path, hint, format string, args ...any) {
	c.Findings = append(c.Findings, Finding{Code: code, Severity: s, Path: path, Msg: fmt.Sprintf(format, args...),
		Hint: hint})
}

// fault adds a fault of the config.
func (c *checker) fault(s source.Severity, f *config.Fault) {
	c.Findings = append(c.Findings, Finding{Code: cmp.Or(f.Code, "config"), Severity: s, Path: f.Path, Line: f.Line,
		Col: f.Col, Msg: f.Msg, Hint: f.Hint, Excerpt: f.Excerpt})
}

// at adds a warning at the value of a key of the config.
func (c *checker) at(code, key, hint, format string, args ...any) {
	c.fault(Warning, c.Report.Config.Fault(code, key, hint, format, args...))
}

// config reads the config and packs the sources, as far as faults allow.
func (c *checker) config(ctx context.Context) error {
	cfg, faults := config.Read(c.Options.Config)
	c.Report.Config = cfg
	has := func(code string) bool {
		return slices.ContainsFunc(faults, func(f *config.Fault) bool { return f.Code == code })
	}
	missing := has("no-config")
	if filepath.Base(cfg.Path) == config.Name && !missing {
		var err error
		if c.Repository, c.Findings, err = Repository(ctx, Root(cfg.Root())); err != nil {
			return err
		}
		c.others(cfg.Path)
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Remote)) {
		if c.Options.Remote != nil {
			faults = append(faults, config.Faults(c.Options.Remote(cfg.Remote[name]))...)
		}
	}
	for _, f := range faults {
		if f.Harmless {
			c.fault(Warning, f)
		} else {
			c.fault(Error, f)
		}
	}
	name := cfg.Solution.Definition
	if defs := trace.Track(name); len(defs) == 1 {
		name = defs[0]
	} else if len(defs) > 1 {
		name = "" // the track is ambiguous
	}
	if name != "" {
		def, err := c.Dataset.Definition(name)
		_, unknown := errors.AsType[*workloads.NotFoundError](err)
		switch {
		case unknown:
			c.fault(Error, cfg.UnknownDefinition(c.Dataset.Definitions()))
		case err != nil:
			c.add(Error, "unknown-definition", cfg.Path, "", "%v", err)
		default:
			c.Report.Definition = def
			meant := *cfg
			meant.Solution.Definition = name
			for _, f := range config.Faults(config.Check(&meant, def)) {
				c.fault(Error, f)
			}
		}
	}
	c.metadata(cfg)
	if cfg.Build.Language != "" && !missing && !has("source-dir") {
		c.folder(ctx, cfg)
	}
	return nil
}

// metadata checks values that are valid in a config but cause problems later.
func (c *checker) metadata(cfg *config.Config) {
	for _, key := range []struct{ name, value string }{{"name", cfg.Solution.Name}, {"author", cfg.Solution.Author}} {
		switch v := key.value; {
		case strings.ContainsAny(v, `/\`) || v == "." || v == ".." || plain.Line(v) != v:
			c.at("path-name", "solution."+key.name, "remove slashes and control characters",
				"%s %q is a part of paths in the contest's dataset", key.name, v)
		case v == "team-name" || v == "my-team-solution-v1" || strings.HasPrefix(v, "<"):
			c.at("template-value", "solution."+key.name, "set your own: results are ranked under it",
				"%s %q is unchanged from the template", key.name, v)
		}
	}
	if c.Repository != nil && current(c.Repository.Packed, cfg) {
		return
	}
	if len(cfg.Build.Dependencies) > 0 {
		c.at("setting-lost", "build.dependencies", pack.CollectHint, "%s, and is not installed", pack.Ignored)
	}
	if err := pack.Collectable(cfg); err != nil {
		c.at("language-not-packed", "build.language", pack.CollectHint, "%v", err)
	}
}

func (c *checker) folder(ctx context.Context, cfg *config.Config) {
	dir := cfg.SourceDir()
	entries, err := pack.Sources(dir)
	c.Entries = entries
	if entries == nil {
		advice := cmp.Or(hint.Of(err), "set [build] source_dir to use another folder below solution/")
		c.add(Error, "no-sources", dir, "the contest packs solution/"+cfg.Build.SourceDir+"; "+advice, "%s",
			strings.TrimPrefix(err.Error(), dir+": "))
		return
	}
	c.entries(dir)
	if !slices.ContainsFunc(entries, func(e pack.Entry) bool { return e.Status != pack.Skipped }) &&
		!slices.ContainsFunc(c.Findings, func(f Finding) bool { return f.Severity == Error && filepath.Dir(f.Path) == dir }) {
		c.add(Error, "no-sources", dir, "only direct children are packed, and only .py .cu .cuh .cpp .c .h .hpp .cc .cxx",
			"no source files")
		return
	}
	c.gitIgnored(ctx, dir)

	// Check the packed files even if the packer would reject the folder.
	sol := pack.Assemble(cfg, entries)
	sol.Spec.EntryPoint = cfg.GuessEntry()
	if len(sol.Sources) == 0 {
		return
	}
	if strings.Count(cfg.Build.EntryPoint, "::") == 1 {
		if f := pack.MissingEntry(cfg, dir, entries); f != nil {
			c.fault(Error, f)
		} else if err := sol.Validate(); err != nil && c.Count(Error) == 0 {
			c.add(Error, "invalid-solution", cfg.Path, "", "%v", err)
		}
	}
	c.Report.Solution, c.Report.Packs = sol, c.Count(Error) == 0
}

func (c *checker) packed() {
	sol := c.Options.Solution
	def, err := c.Dataset.Definition(sol.Definition)
	if err != nil {
		hint := ""
		if unknown, ok := errors.AsType[*workloads.NotFoundError](err); ok {
			hint = strings.Join(append(unknown.Near, unknown.Track...), ", ")
			if hint != "" {
				hint = "did you mean one of: " + hint
			}
		}
		c.add(Error, "unknown-definition", c.File, hint, "%v", err)
	}
	c.Report.Definition = def
	for _, s := range sol.Sources {
		if strings.Contains(s.Content, "\r\n") {
			c.add(Warning, "crlf", s.Path, "convert the line ends to LF before packing",
				"CRLF line ends: the builder compiles it again in every process")
		}
		c.content(s.Path, s.Content)
	}
}

// content checks the content of one packed file.
func (c *checker) content(path, text string) {
	if strings.HasPrefix(text, "version https://git-lfs.github.com/spec/") {
		c.add(Error, "lfs-pointer", path, "fetch it with git lfs pull; better, commit sources without LFS",
			"a Git LFS pointer, not a source")
	}
	if len(text) > largeSource {
		c.add(Warning, "large-source", path, "too large for a hand-written source: compute tables at run time",
			"%d bytes in one source", len(text))
	}
}

// largeSource is a size, in bytes, that no handwritten source reaches.
const largeSource = 2 << 20

// sources inspects the solution, and replaces the bare paths in its findings by the paths of files.
func (c *checker) sources(ctx context.Context) {
	sol := c.Report.Solution
	found := Sources(ctx, sol, c.Report.Definition)
	entryFile, _ := sol.Entry()
	if !slices.ContainsFunc(sol.Sources, func(s trace.SourceFile) bool { return s.Path == entryFile }) {
		// The config's finding already reports a missing entry file.
		found = slices.DeleteFunc(found, func(f Finding) bool { return f.Code == "no-function" || f.Code == "entry-suffix" })
	}
	if !sol.Spec.Compiled() || c.Report.Config == nil { // else the compiler checks
		var left func(string) bool
		if c.Report.Config != nil {
			left = c.leftOut
		}
		found = append(found, source.Includes(sol, left)...)
	}
	for _, f := range found {
		f.Path = c.sourcePath(f.Path)
		c.Findings = append(c.Findings, f)
	}
	compiled := map[string]bool{".cu": true, ".cpp": true, ".cc": true, ".cxx": true, ".c": true}
	for _, s := range sol.Sources {
		if ext := filepath.Ext(s.Path); sol.Spec.Compiled() && ext != strings.ToLower(ext) && compiled[strings.ToLower(ext)] {
			c.add(Warning, "upper-case-suffix", c.sourcePath(s.Path), "rename it to end in "+strings.ToLower(ext),
				"packed, but not compiled: builders match suffixes case-sensitively")
		}
		if (&trace.Solution{Sources: []trace.SourceFile{s}}).CheckNames() != nil {
			c.add(Error, "file-name", c.sourcePath(s.Path), trace.NameHint, "the name has characters that builders do not quote")
		}
	}
}

// leftOut reports whether the source folder has a file of that name that is not packed.
func (c *checker) leftOut(name string) bool {
	name = filepath.FromSlash(name)
	if c.Report.Config == nil || !filepath.IsLocal(name) {
		return false
	}
	st, err := os.Stat(c.sourcePath(name))
	return err == nil && st.Mode().IsRegular()
}

func (c *checker) sourcePath(name string) string {
	if c.Report.Config == nil || name == "" {
		return name
	}
	return filepath.Join(c.Report.Config.SourceDir(), name)
}

// dropped are the extensions of files that a build may need but the packer leaves out.
var dropped = strings.Fields(".inl .inc .ipp .tpp .tcc .hh .hxx .h++ .def .ptx .cubin .fatbin .so .a .o .json .bin " +
	".pt .npy .npz .in .cuinc .pyx .pyi .s .asm .sass .toml .yaml .yml .txt .tar .zip .gz .dat .csv")

// entries checks how the packer treats each file of the source folder dir.
func (c *checker) entries(dir string) {
	c.outside(dir)
	for _, e := range c.Entries {
		file := filepath.Join(dir, e.Path)
		add := func(s source.Severity, code, hint, format string, args ...any) {
			c.add(s, code, file, hint, format, args...)
		}
		if e.Status == pack.Skipped {
			c.skipped(e, file, add)
			continue
		}
		c.outside(file)
		if strings.HasPrefix(e.Path, ".") {
			add(Warning, "hidden-file", "delete it, or rename it", "a hidden file that is packed")
		}
		if e.Status == pack.Altered {
			reason, _, _ := strings.Cut(e.Reason, ";")
			add(Warning, "crlf", "convert it: sed -i 's/\\r$//', and * text=auto eol=lf in .gitattributes", "%s when packed",
				reason)
		}
		if strings.HasPrefix(e.Content, "\ufeff") {
			add(Warning, "byte-order-mark", "save it as UTF-8 without BOM", "begins with a byte order mark, which is packed too")
		}
		if strings.IndexByte(e.Content, 0) >= 0 {
			add(Error, "nul-byte", "save it as UTF-8", "has NUL bytes, which no compiler accepts")
		}
		if strings.TrimSpace(e.Content) == "" {
			add(Note, "blank-file", "delete it", "contains only white space")
		}
		c.content(file, e.Content)
	}
}

// outside checks for a link that a clone of the repository cannot follow.
func (c *checker) outside(path string) {
	root := c.Report.Config.Root()
	text := git.LinkOut(cmp.Or(git.Root(root), root), path)
	if _, err := os.Stat(path); err == nil && text != "" {
		c.add(Error, "link-outside", path, "commit the file itself",
			"a link to %s, outside the repository: missing in a clone", text)
	}
}

// skipped checks a file that is not packed. It ignores files that no build needs.
func (c *checker) skipped(e pack.Entry, file string, add func(s source.Severity, code, hint, format string,
	args ...any)) {
	switch ext := strings.ToLower(filepath.Ext(e.Path)); {
	case e.Reason == "empty file":
		add(Error, "empty-file", "delete it, or add a comment", "an empty file makes the contest's packer fail")
	case e.Reason == "not UTF-8":
		add(Error, "invalid-utf8", "save it as UTF-8", "not valid UTF-8 in line %d: the contest's packer fails", e.Line)
	case e.Reason == "name is not UTF-8":
		c.add(Error, "file-name", filepath.Join(filepath.Dir(file), fmt.Sprintf("%q", e.Path)), "rename it",
			"the file name is not UTF-8")
	case e.Reason == "broken link":
		add(Warning, "broken-link", "commit the file itself", "a broken link: not packed")
	case e.Reason == pack.LinkLoop:
		add(Warning, "broken-link", "delete it, or commit the file that it stands for", "a link to itself: not packed")
	case e.Reason == "too large":
		add(Error, "too-large", "", "the sources are too large to pack: %d bytes", e.Size)
	case e.Reason == "unreadable":
		add(Error, "unreadable", "", "%s", e.Reason)
	case e.Reason == pack.Irregular:
		add(Warning, "dropped-file", "delete it", "a FIFO, device or socket: not packed")
	case e.Reason == "subfolder":
		if name := someSource(file); name != "" {
			add(Warning, "dropped-subfolder", "move its files up: only direct children of the source folder are packed",
				"a subfolder with %s, which is not packed", name)
		}
	case slices.Contains([]string{".cubin", ".fatbin", ".ptx", ".so", ".a", ".o"}, ext):
		add(Warning, "dropped-binary", "ship sources only: prebuilt kernels are forbidden, and this one is not packed",
			"not packed, and forbidden")
	case slices.Contains(dropped, ext):
		add(Warning, "dropped-file", "move its content to a file that ends in .py .cu .cuh .cpp .c .h .hpp .cc or .cxx",
			"not packed: the contest ignores %s files", ext)
	}
}

// someSource returns the name of a source file in or below dir, or "".
func someSource(dir string) (name string) {
	if strings.HasPrefix(filepath.Base(dir), ".") || strings.HasPrefix(filepath.Base(dir), "__") {
		return ""
	}
	seen := 0
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if seen++; err != nil || seen > 1000 {
			return fs.SkipAll
		}
		switch strings.ToLower(filepath.Ext(path)) {
		case ".py", ".cu", ".cuh", ".cpp", ".c", ".h", ".hpp", ".cc", ".cxx", ".inl", ".inc":
			if !d.IsDir() {
				name = d.Name()
				return fs.SkipAll
			}
		}
		return nil
	})
	return name
}
