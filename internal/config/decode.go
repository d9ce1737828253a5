package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"

	"fisub/internal/trace"
)

// A Section is a predefined table of the config.
type Section struct {
	Name     string
	Required bool
	Help     string // Markdown
	Keys     []Key
}

// Sections returns all tables except [remote.NAME], in order.
func (c *Config) Sections() []Section {
	const packed = "The contest's own packer drops "
	return []Section{
		{"solution", true, "Name, author and definition.", []Key{
			{Name: "name", To: &c.Solution.Name, Required: true, Example: `"my-kernel"`,
				Help: "name of the solution in traces"},
			{Name: "definition", To: &c.Solution.Definition, Required: true, Example: `"gdn_decode_qk4_v8_d128_k_last"`,
				Help: "the implemented definition; `fisub dataset ls` lists them. A track such as gdn is not a definition"},
			{Name: "author", To: &c.Solution.Author, Required: true, Example: `"my-team"`, Help: "author in traces and " +
				"results"},
			{Name: "description", To: &c.Solution.Description, Blank: true, Example: `"one warp for each row"`,
				Help: "description for readers. " + packed + "it"},
		}},
		{"build", true, "Language, entry point and calling convention.", []Key{
			{Name: "language", To: (*string)(&c.Build.Language), Required: true, OneOf: languages, Example: `"cuda"`,
				Help: "language of the sources"},
			{Name: "entry_point", To: &c.Build.EntryPoint, Required: true, Form: "file::symbol",
				Example: `"kernel.cu::kernel"`,
				Help:    "the source file and its function to call"},
			{Name: "destination_passing_style", To: &c.Build.DestinationPassingStyle, Default: true, Example: "true",
				Help: "true: the caller allocates the outputs and passes them as last parameters; " +
					"false: the function returns them"},
			{Name: "binding", To: &c.Build.Binding, OneOf: bindings, Absent: "tvm-ffi for compiled languages",
				Example: `"torch"`, Help: "how a compiled solution is loaded; tvm-ffi, the default, is not packed"},
			{Name: "dependencies", To: &c.Build.Dependencies, Absent: "none", Example: `["einops"]`,
				Help: "imported Python packages. " + packed + "them"},
			{Name: "target_hardware", To: &c.Build.TargetHardware, Absent: "cuda", Example: `["cuda"]`,
				Help: "a field of the official format; the packed value is always cuda"},
			{Name: "source_dir", To: &c.Build.SourceDir, Form: "a folder below solution/", Absent: "the language",
				Example: `"cuda"`, Help: "folder of the sources, relative to solution/"},
		}},
		{"bench", false, "Defaults of flags.", []Key{
			{Name: "profile", To: &c.Bench.Profile, OneOf: Profiles, Absent: Official, Example: `"quick"`,
				Help: "number of calls and trials; see `fisub help timing`"},
			{Name: "baseline", To: &c.Bench.Baseline, Form: "a folder of solution/baselines, reference, none, or FILE.json",
				Absent: "none", Example: `"triton"`,
				Help: "the solution to compare with; the mean speed-up over reference is the contest's score"},
			{Name: "set", To: &c.Bench.Set, Form: "a set of the definition", Absent: "default", Example: `"contest"`,
				Help: "the workloads that run; `fisub dataset ls` lists the sets"},
		}},
		{"submit", false, "How `fisub submit` tags.", []Key{
			{Name: "tag", To: &c.Submit.Tag, Form: "letters, digits and . _ - / inside", Absent: "submission-{definition}-{n}",
				Example: `"v{n}"`, Help: "name of the tag; {n} is the next number, {definition} the definition"},
			{Name: "remote", To: &c.Submit.Remote, Form: "a name that `git remote` lists",
				Absent: "the branch's, else origin", Example: `"origin"`,
				Help: "where `fisub submit --push` pushes the tag"},
		}},
	}
}

var (
	tables    = []string{"solution", "build", "bench", "submit", "remote"}
	languages = []string{string(trace.CUDA), string(trace.CPP), string(trace.Triton), string(trace.Python),
		string(trace.TileLang)}
	bindings = []string{"tvm-ffi", "torch"}

	// Profiles are the valid values of bench.profile; package bench defines their meaning.
	Profiles = []string{Official, Quick, Thorough}
)

// The names in Profiles.
const Official, Quick, Thorough = "official", "quick", "thorough"

// home returns the table that defines key, or "".
func (c *Config) home(key string) string {
	for _, s := range c.Sections() {
		if slices.ContainsFunc(s.Keys, func(k Key) bool { return k.Name == key }) {
			return s.Name
		}
	}
	return ""
}

// Parse decodes a config. path is used for messages and Root. Errors are as for Load. The Config does not retain data.
func Parse(path string, data []byte) (*Config, error) {
	c, faults := parse(path, data)
	return c.unless(faults)
}

// unless returns c with the faults as warnings, or an error if any fault is not harmless.
func (c *Config) unless(faults []*Fault) (*Config, error) {
	if slices.ContainsFunc(faults, func(f *Fault) bool { return !f.Harmless }) {
		return nil, joined(faults)
	}
	c.Warnings = faults
	return c, nil
}

// joined joins faults in the order of their positions, or returns nil.
func joined(faults []*Fault) error {
	slices.SortStableFunc(faults, byPlace)
	errs := make([]error, len(faults))
	for i, f := range faults {
		errs[i] = f
	}
	return errors.Join(errs...)
}

// word matches the word at a syntax error.
var word = regexp.MustCompile(`^[A-Za-z0-9_][^\s,#\]}=]*`)

func byPlace(a, b *Fault) int { return (a.Line-b.Line)<<20 + a.Col - b.Col }

func parse(path string, data []byte) (*Config, []*Fault) {
	c := &Config{Path: path, src: bytes.Clone(data)}
	var faults []*Fault
	if trimmed, ok := bytes.CutPrefix(c.src, []byte("\ufeff")); ok {
		c.src = trimmed
		faults = append(faults, &Fault{Code: "config-syntax", Path: path, Line: 1, Col: 1,
			Msg: "begins with a byte order mark, which TOML forbids", Hint: "save it as UTF-8 without BOM"})
	}
	values := map[string]any{}
	if c.places = locate(c.src); len(c.places) > maxKeys {
		return c, append(faults, &Fault{Code: "config-syntax", Path: path,
			Msg: fmt.Sprintf("has more than %d keys and tables", maxKeys)})
	}
	if err := toml.Unmarshal(c.src, &values); err != nil {
		f := &Fault{Code: "config-syntax", Path: path, Msg: strings.TrimPrefix(err.Error(), "toml: ")}
		if at, ok := errors.AsType[*toml.DecodeError](err); ok {
			line, col := at.Position()
			start := 0
			for range line - 1 {
				start += bytes.IndexByte(c.src[start:], '\n') + 1
			}
			start = min(start+max(0, col-1), len(c.src))
			f.at(c.src, span{start, start + max(1, len(word.Find(c.src[start:])))})
		}
		return c, append(faults, f)
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if !slices.Contains(tables, name) && len(faults) < maxFaults {
			faults = append(faults, c.unknownTable(name, values[name]))
		}
	}
	for _, s := range c.Sections() {
		t, f := c.table(s.Name, values[s.Name])
		if f != nil {
			faults = append(faults, f)
		} else if values[s.Name] == nil && s.Required {
			faults = append(faults, c.missingTable(s))
		}
		t.Decode(s.Keys)
		if f == nil && (values[s.Name] != nil || !s.Required) {
			c.check(t)
			faults = append(faults, t.faults...)
		}
	}
	faults = append(faults, c.remotes(values["remote"])...)
	slices.SortStableFunc(faults, byPlace)
	return c, faults
}

// table returns the named table. If value is not a table, it returns an empty one and a fault.
func (c *Config) table(name string, value any) (*Table, *Fault) {
	t := &Table{file: c, name: name}
	var ok bool
	if t.values, ok = value.(map[string]any); ok || value == nil {
		return t, nil
	}
	kind, hint := article(value), "write ["+name+"] on its own line"
	if items, ok := value.([]any); ok && len(items) > 0 {
		if _, ok := items[0].(map[string]any); ok {
			kind, hint = "an array of tables", "write ["+name+"], with single brackets"
		}
	}
	return t, c.Fault("wrong-type", name, hint, "%s must be a table, not %s", name, kind)
}

// remotes stores the tables [remote.NAME], for the providers to decode.
func (c *Config) remotes(value any) (faults []*Fault) {
	all, f := c.table("remote", value)
	if f != nil {
		return []*Fault{f}
	}
	for _, name := range slices.Sorted(maps.Keys(all.values)) {
		if name == "" {
			faults = append(faults, c.Fault("wrong-type", "remote", "write [remote.NAME]", "a table of remote without a "+
				"name"))
			continue
		}
		t, f := c.table("remote."+name, all.values[name])
		if f != nil {
			faults = append(faults, f)
			continue
		}
		if c.Remote == nil {
			c.Remote = map[string]*Table{}
		}
		c.Remote[name] = t
	}
	return faults
}

func (c *Config) unknownTable(name string, value any) *Fault {
	what, hint := "key", meant(name, tables)
	if _, ok := value.(map[string]any); ok {
		what = "table"
	} else if home := c.home(name); home != "" {
		hint = name + " belongs in [" + home + "]"
	}
	f := c.Fault("unknown-key", name, cmp.Or(hint, "known here: "+strings.Join(tables, ", ")),
		"unknown %s %s", what, name)
	f.Harmless = hint == "" || c.home(name) == "" && !misspelt(name, tables)
	return f
}

func (c *Config) missingTable(s Section) *Fault {
	var names []string
	for _, k := range s.Keys {
		if k.Required {
			names = append(names, k.Name)
		}
	}
	return &Fault{Code: "missing-key", Path: c.Path, Msg: "missing table [" + s.Name + "]",
		Hint: "add [" + s.Name + "] with its keys " + strings.Join(names, ", ")}
}

// check reports invalid values that have the right type.
func (c *Config) check(t *Table) {
	switch t.name {
	case "solution":
		if defs := trace.Track(c.Solution.Definition); defs != nil {
			t.add("track-name", "definition", "write "+quoted(defs), "definition %q is a track, not a definition",
				c.Solution.Definition).Harmless = true
		}
	case "build":
		if c.Build.EntryPoint != "" {
			c.checkEntry(t)
		}
		if dir := c.Build.SourceDir; dir == "" {
			c.Build.SourceDir = string(c.Build.Language)
		} else if path.IsAbs(dir) || slices.Contains(strings.Split(strings.ReplaceAll(dir, `\`, "/"), "/"), "..") {
			t.add("source-dir", "source_dir", "the path is relative to solution/ and must stay below it",
				"source_dir %q is not a folder below solution/", dir)
		}
	case "submit":
		sample := strings.ReplaceAll(strings.Replace(c.Submit.Tag, "{n}", "1", 1), "{definition}", "d")
		if sample != "" && !refName(sample) {
			t.add("git-name", "tag",
				"use letters, digits, and . _ - / inside; {n} is the next number, {definition} the definition",
				"tag %q is not a valid git tag name", c.Submit.Tag)
		}
		if name := c.Submit.Remote; name != "" && !refName(name) {
			f := t.add("git-name", "remote", "git remote lists them", "remote is not the name of a git remote")
			f.Excerpt = "" // a URL may contain a password
		}
	}
}

func (c *Config) checkEntry(t *Table) {
	text := c.Build.EntryPoint
	file, symbol, _ := strings.Cut(text, "::")
	fault := func(hint, what string) { t.add("entry-point", "entry_point", hint, "entry_point %q%s", text, what) }
	switch strings.Count(text, "::") {
	case 0:
		fault(`write "`+c.GuessEntry()+`"`, " is not file::symbol")
	case 1:
		if file == "" {
			fault(`write "`+defaultFile(c.Build.Language)+"::"+symbol+`"`, " has no file")
		} else if symbol == "" {
			fault(`write "`+file+`::kernel"`, " has no symbol")
		} else if !identifier(symbol) {
			fault("write only the function's name", fmt.Sprintf(": symbol %q is not an identifier", symbol))
		}
	default:
		fault(`use "::" once, between file and symbol`, " is not file::symbol")
	}
}

func guessEntry(lang trace.Language, text string) (file, symbol string) {
	file, symbol = defaultFile(lang), text
	switch before, after, colon := strings.Cut(text, ":"); {
	case colon && before != "" && identifier(after):
		file, symbol = before, after
	case path.Ext(text) != "":
		file, symbol = text, "kernel"
	}
	if !identifier(symbol) {
		symbol = "kernel"
	}
	return file, symbol
}

// refName reports whether text is a safe name for a tag or remote.
func refName(text string) bool {
	for _, part := range strings.Split(text, "/") {
		if part == "" || part[0] == '.' || strings.HasSuffix(part, ".") || strings.HasSuffix(part, ".lock") {
			return false
		}
	}
	return text[0] != '-' && len(text) <= 200 && !strings.Contains(text, "..") &&
		strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/") == ""
}

func defaultFile(lang trace.Language) string {
	switch lang {
	case trace.Python, trace.Triton, trace.TileLang:
		return "kernel.py"
	case trace.CPP:
		return "kernel.cpp"
	}
	return "kernel.cu"
}

func identifier(s string) bool {
	for i, r := range s {
		if r != '_' && !unicode.IsLetter(r) && (i == 0 || !unicode.IsDigit(r)) {
			return false
		}
	}
	return s != ""
}

// A place is the position of a key or table header, and of its value. A header's value is the name with its brackets.
type place struct {
	path       string // "build.entry_point", "build"
	key, value span
}

// locate returns the places of all keys and tables in order, up to a syntax error or just over maxKeys.
func locate(src []byte) (all []place) {
	var p unstable.Parser
	p.Reset(src)
	table := ""
	for p.NextExpression() && len(all) <= maxKeys {
		switch e := p.Expression(); e.Kind {
		case unstable.Table, unstable.ArrayTable:
			path, name := keyOf(e)
			all = append(all, place{path, name, span{max(0, name.start-1), min(name.end+1, len(src))}})
			table = path + "."
		case unstable.KeyValue:
			all = append(all, locateValue(src, table, e)...)
		}
	}
	return all
}

// locateValue returns the place of a key and the places of keys in its value. table is the path prefix.
func locateValue(src []byte, table string, e *unstable.Node) []place {
	name, key := keyOf(e)
	p := place{table + name, key, span{key.end, int(e.Raw.Offset + e.Raw.Length)}}
	for strings.IndexByte(" \t=", src[p.value.start]) >= 0 {
		p.value.start++
	}
	all := []place{p}
	if v := e.Value(); v.Kind == unstable.InlineTable {
		for it := v.Children(); it.Next(); {
			if it.Node().Kind == unstable.KeyValue {
				all = append(all, locateValue(src, p.path+".", it.Node())...)
			}
		}
	}
	return all
}

// keyOf returns the complete dotted key of a value, or the name of a table.
func keyOf(e *unstable.Node) (path string, s span) {
	var parts []string
	for it := e.Key(); it.Next(); {
		part := it.Node()
		if parts = append(parts, string(part.Data)); len(parts) == 1 {
			s.start = int(part.Raw.Offset)
		}
		s.end = int(part.Raw.Offset + part.Raw.Length)
	}
	return strings.Join(parts, "."), s
}

// place returns the place of the key or table at path, or of the first one below it.
func (c *Config) place(path string) (place, bool) {
	i := slices.IndexFunc(c.places, func(p place) bool { return p.path == path })
	if i < 0 {
		i = slices.IndexFunc(c.places, func(p place) bool { return strings.HasPrefix(p.path, path+".") })
	}
	if i < 0 {
		return place{}, false
	}
	return c.places[i], true
}
