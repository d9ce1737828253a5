package config

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"

	"fisub/internal/trace"
)

// A key is one that a table may hold.
type key struct {
	table, name string
	kind        unstable.Kind // String, Bool, or Array of strings
	required    string        // an example where the key must be there, else ""
	blank       bool          // may be ""
}

var schema = []key{
	{table: "solution", name: "name", kind: unstable.String, required: `name = "my-kernel"`},
	{table: "solution", name: "definition", kind: unstable.String, required: `definition = "gdn_decode_qk4_v8_d128_k_last"`},
	{table: "solution", name: "author", kind: unstable.String, required: `author = "my-team"`},
	{table: "solution", name: "description", kind: unstable.String, blank: true},
	{table: "build", name: "language", kind: unstable.String, required: `language = "cuda"`},
	{table: "build", name: "entry_point", kind: unstable.String, required: `entry_point = "kernel.cu::kernel"`},
	{table: "build", name: "destination_passing_style", kind: unstable.Bool},
	{table: "build", name: "binding", kind: unstable.String},
	{table: "build", name: "dependencies", kind: unstable.Array},
	{table: "build", name: "source_dir", kind: unstable.String},
	{table: "bench", name: "profile", kind: unstable.String},
	{table: "bench", name: "baseline", kind: unstable.String},
	{table: "bench", name: "set", kind: unstable.String},
	{table: "submit", name: "tag", kind: unstable.String},
	{table: "submit", name: "remote", kind: unstable.String},
}

var (
	tables    = []string{"solution", "build", "bench", "submit", "remote"}
	languages = []string{string(trace.CUDA), string(trace.CPP), string(trace.Triton), string(trace.Python), string(trace.TileLang)}
	bindings  = []string{"tvm-ffi", "torch"}
	profiles  = []string{"official", "quick", "thorough"}
)

// trackDefinitions are the definitions of the contest's track of that name, or of what else people call it; nil for any
// other name.
func trackDefinitions(name string) []string {
	switch strings.ReplaceAll(strings.ToLower(name), "-", "_") {
	case "moe", "fused_moe":
		return []string{"moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048"}
	case "dsa", "dsa_paged", "sparse_attention", "deepseek_sparse_attention":
		return []string{"dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps64", "dsa_topk_indexer_fp8_h64_d128_topk2048_ps64"}
	case "gdn", "gated_delta_net", "gated_deltanet":
		return []string{"gdn_decode_qk4_v8_d128_k_last", "gdn_prefill_qk4_v8_d128_k_last"}
	}
	return nil
}

func lookup(table, name string) (key, bool) {
	for _, k := range schema {
		if k.table == table && k.name == name {
			return k, true
		}
	}
	return key{}, false
}

// Parse decodes a config; path is for messages and Root. Its error is that of Load. The Config keeps no part of data.
func Parse(path string, data []byte) (*Config, error) {
	c, faults := parse(path, data)
	return c.unless(faults)
}

// unless is c where there are no faults.
func (c *Config) unless(faults []*Fault) (*Config, error) {
	if len(faults) == 0 {
		return c, nil
	}
	errs := make([]error, len(faults))
	for i, f := range faults {
		errs[i] = f
	}
	return nil, errors.Join(errs...)
}

func parse(path string, data []byte) (*Config, []*Fault) {
	d := &decoder{
		Config: Config{Path: path, src: bytes.Clone(data), places: map[string]span{}},
		values: map[string]value{}, reported: map[string]bool{}, headers: map[string]span{},
	}
	if trimmed, ok := bytes.CutPrefix(d.src, []byte("\ufeff")); ok {
		d.src = trimmed
		d.faults = append(d.faults, &Fault{Code: "config-syntax", Path: path, Line: 1, Col: 1, Msg: "begins with a byte order mark, which TOML forbids",
			Hint: "save it as UTF-8 without BOM"})
	}
	d.parser.Reset(d.src)
	for d.parser.NextExpression() {
		d.expression(d.parser.Expression())
	}
	whole := true
	if err := d.parser.Error(); err != nil {
		whole = false
		var perr *unstable.ParserError
		if !errors.As(err, &perr) {
			return &d.Config, []*Fault{{Code: "config-syntax", Path: path, Msg: err.Error()}}
		}
		r := d.parser.Range(perr.Highlight)
		d.fault("config-syntax", rangeSpan(r), "", "%s", perr.Message)
	} else {
		d.redefinitions()
	}
	d.fill()
	if whole {
		d.missing()
	}
	slices.SortStableFunc(d.faults, func(a, b *Fault) int { return (a.Line-b.Line)<<20 + a.Col - b.Col })
	return &d.Config, d.faults
}

// A decoder walks go-toml's syntax tree instead of letting it fill a struct: filling stops at the first wrong type, and
// knows no places of the values that are right in TOML and wrong here.
type decoder struct {
	Config
	parser   unstable.Parser
	headers  map[string]span // of the tables so far, by their names, each with a NUL behind it
	arrays   []string        // names of the arrays of tables so far, in the same form
	table    []part          // of the last header
	dead     bool            // the last header was at fault: its keys are not looked at
	values   map[string]value
	reported map[string]bool // keys and tables that have had their fault
	faults   []*Fault
}

// A part is one name of a dotted key.
type part struct {
	name string
	at   span
}

type value struct {
	text string
	on   bool
	list []string
	at   span
}

func rangeSpan(r unstable.Range) span {
	return span{int(r.Offset), int(r.Offset) + int(r.Length)}
}

func (d *decoder) fault(code string, at span, hint, format string, args ...any) {
	f := &Fault{Code: code, Path: d.Path, Msg: fmt.Sprintf(format, args...), Hint: hint}
	f.at(d.src, at)
	d.faults = append(d.faults, f)
}

func (d *decoder) once(code, id string, at span, hint, format string, args ...any) {
	if !d.reported[id] {
		d.reported[id] = true
		d.fault(code, at, hint, format, args...)
	}
}

func parts(it unstable.Iterator) []part {
	var ps []part
	for it.Next() {
		n := it.Node()
		ps = append(ps, part{string(n.Data), rangeSpan(n.Raw)})
	}
	return ps
}

func (d *decoder) expression(n *unstable.Node) {
	switch n.Kind {
	case unstable.Table, unstable.ArrayTable:
		d.table = parts(n.Key())
		d.dead = !d.header(d.table, n.Kind)
	case unstable.KeyValue:
		if !d.dead {
			d.keyValue(d.table, n)
		}
	}
}

// header looks at a [table] or [[table]] and tells whether its keys are of interest.
func (d *decoder) header(ps []part, kind unstable.Kind) bool {
	top, name := ps[0], joined(ps, ".")
	id := joined(ps, "\x00") + "\x00"
	inArray := slices.ContainsFunc(d.arrays, func(a string) bool { return strings.HasPrefix(id, a) })
	first, twice := d.headers[id]
	switch {
	case !slices.Contains(tables, top.name):
		d.unknown("", top, "table")
		return false
	case kind == unstable.ArrayTable && !inArray:
		d.arrays = append(d.arrays, id)
	case kind == unstable.Table && twice && !inArray:
		var f Fault
		f.at(d.src, first)
		d.fault("config-syntax", span{top.at.start, ps[len(ps)-1].at.end}, "", "duplicate table %s, first in line %d", name, f.Line)
		return true
	}
	d.headers[id] = top.at
	switch {
	case top.name == "remote":
		if kind == unstable.ArrayTable && len(ps) <= 2 {
			d.fault("wrong-type", ps[len(ps)-1].at, "write single brackets", "%s must be a table, not an array of tables", name)
		}
		return len(ps) < 2
	case len(ps) > 1:
		d.value(ps, kind, nil, span{})
		return false
	case kind == unstable.ArrayTable:
		d.once("wrong-type", top.name, top.at, fmt.Sprintf("write [%s]", top.name), "%s must be a table, not an array of tables", top.name)
		return false
	}
	if _, ok := d.places[top.name]; !ok {
		d.places[top.name] = span{max(0, top.at.start-1), min(len(d.src), top.at.end+1)}
	}
	return true
}

func (d *decoder) keyValue(table []part, n *unstable.Node) {
	own := parts(n.Key())
	ps := append(slices.Clone(table), own...)
	at := rangeSpan(n.Raw)
	at.start = own[len(own)-1].at.end
	for at.start < at.end && strings.IndexByte(" \t=", d.src[at.start]) >= 0 {
		at.start++
	}
	v := n.Value()
	top := ps[0]
	switch {
	case !slices.Contains(tables, top.name):
		d.unknown("", top, "key")
	case top.name == "remote":
		if len(ps) <= 2 && v.Kind != unstable.InlineTable {
			d.fault("wrong-type", at, "", "%s must be a table, not %s", joined(ps, "."), article(v.Kind))
		} else if len(ps) == 1 {
			d.children(ps, v)
		}
	case len(ps) == 1 && v.Kind == unstable.InlineTable:
		d.places[top.name] = at
		d.children(ps, v)
	case len(ps) == 1:
		d.once("wrong-type", top.name, at, fmt.Sprintf("write [%s] on a line of its own", top.name), "%s must be a table, not %s", top.name, article(v.Kind))
	default:
		if _, ok := d.places[top.name]; !ok {
			d.places[top.name] = top.at
		}
		d.value(ps, v.Kind, v, at)
	}
}

func (d *decoder) children(ps []part, table *unstable.Node) {
	it := table.Children()
	for it.Next() {
		d.keyValue(ps, it.Node())
	}
}

// value takes the value of a key of one of our own tables: ps is table, key, and whatever was dotted behind it; n is nil
// for a header.
func (d *decoder) value(ps []part, kind unstable.Kind, n *unstable.Node, at span) {
	table, name := ps[0].name, ps[1].name
	k, ok := lookup(table, name)
	if !ok {
		d.unknown(table, ps[1], "key")
		return
	}
	id := table + "." + name
	if len(ps) > 2 || n == nil {
		d.once("wrong-type", id, ps[1].at, "", "%s must be %s, not a table", id, article(k.kind))
		return
	}
	if first, dup := d.places[id]; dup {
		var f Fault
		f.at(d.src, first)
		d.fault("config-syntax", ps[1].at, "", "duplicate key %s, first in line %d", id, f.Line)
		return
	}
	d.places[id] = at
	v := value{at: at}
	switch {
	case kind != k.kind:
		d.wrongType(id, k, n, at)
		return
	case kind == unstable.String:
		v.text = string(n.Data)
		if v.text == "" && !k.blank {
			d.fault("wrong-type", at, "", "%s is empty", id)
			return
		}
	case kind == unstable.Bool:
		v.on = string(n.Data) == "true"
	case kind == unstable.Array:
		it := n.Children()
		for it.Next() {
			e := it.Node()
			where := rangeSpan(e.Raw)
			if e.Raw.Length == 0 {
				where = at
			}
			switch {
			case e.Kind != unstable.String:
				d.fault("wrong-type", where, "", "%s must hold strings only, not %s", id, article(e.Kind))
			case len(e.Data) == 0:
				d.fault("wrong-type", where, "", "%s holds an empty string", id)
			default:
				v.list = append(v.list, string(e.Data))
			}
		}
	}
	d.values[id] = v
}

func (d *decoder) wrongType(id string, k key, n *unstable.Node, at span) {
	hint := ""
	text := string(n.Data)
	switch {
	case k.kind == unstable.Bool && n.Kind == unstable.String && (text == "true" || text == "false"):
		hint = "write " + text + " without quotes"
	case k.kind == unstable.String && (n.Kind == unstable.Integer || n.Kind == unstable.Float || n.Kind == unstable.Bool):
		hint = fmt.Sprintf("write %q in quotes", text)
	case k.kind == unstable.Array && n.Kind == unstable.String:
		hint = fmt.Sprintf("write [%s]", quote(text))
	}
	d.fault("wrong-type", at, hint, "%s must be %s, not %s", id, article(k.kind), article(n.Kind))
}

// unknown reports a key or table that no config has; table is "" at the top level.
func (d *decoder) unknown(table string, p part, what string) {
	id, candidates := p.name, slices.Clone(tables)
	if table != "" {
		id, candidates = table+"."+p.name, nil
		for _, k := range schema {
			if k.table == table {
				candidates = append(candidates, k.name)
			}
		}
	}
	hint := ""
	if p.name == "solution_dir" {
		hint = `write source_dir = "..." in [build]: a folder below solution/`
	} else if i := slices.IndexFunc(schema, func(k key) bool { return k.name == p.name }); i >= 0 && what == "key" {
		hint = fmt.Sprintf("%s belongs in [%s]", p.name, schema[i].table)
	} else if near := trace.Nearest(p.name, candidates); len(near) > 0 {
		hint = "did you mean " + quoted(near) + "?"
	} else {
		hint = "known here: " + strings.Join(candidates, ", ")
	}
	d.once("unknown-key", "?"+id, p.at, hint, "unknown %s %s", what, id)
}

// redefinitions reports what the syntax allows and TOML forbids: tables and keys defined twice, numbers out of range. It
// decodes the remote tables on the way.
func (d *decoder) redefinitions() {
	var all map[string]any
	err := toml.Unmarshal(d.src, &all)
	var derr *toml.DecodeError
	if errors.As(err, &derr) {
		line, col := derr.Position()
		for _, f := range d.faults {
			if f.Line == line {
				return
			}
		}
		start := 0
		for range line - 1 {
			start += bytes.IndexByte(d.src[start:], '\n') + 1
		}
		start += max(0, col-1)
		end := start + 1
		for end < len(d.src) && strings.IndexByte(" \t\r\n]=,", d.src[end]) < 0 {
			end++
		}
		d.fault("config-syntax", span{start, end}, "", "%s", strings.TrimPrefix(derr.Error(), "toml: "))
		return
	}
	if err != nil {
		d.faults = append(d.faults, &Fault{Code: "config-syntax", Path: d.Path, Msg: strings.TrimPrefix(err.Error(), "toml: ")})
		return
	}
	remotes, _ := all["remote"].(map[string]any)
	for name, t := range remotes {
		if table, ok := t.(map[string]any); ok {
			if d.Remote == nil {
				d.Remote = map[string]map[string]any{}
			}
			d.Remote[name] = table
		}
	}
}

// missing reports the required keys and tables that are not there.
func (d *decoder) missing() {
	for _, table := range []string{"solution", "build"} {
		at, present := d.places[table]
		if !present && d.reported[table] {
			continue
		}
		var absent []string
		for _, k := range schema {
			id := k.table + "." + k.name
			if _, ok := d.places[id]; k.table != table || k.required == "" || ok || d.reported[id] {
				continue
			}
			absent = append(absent, k.name)
			if present {
				d.fault("missing-key", at, "add "+k.required, "missing key %s", id)
			}
		}
		if !present {
			d.faults = append(d.faults, &Fault{Code: "missing-key", Path: d.Path, Msg: fmt.Sprintf("missing table [%s]", table),
				Hint: fmt.Sprintf("add [%s] with its keys %s", table, strings.Join(absent, ", "))})
		}
	}
}

// fill copies the values into the Config and checks what they say.
func (d *decoder) fill() {
	text := func(id string) string { return d.values[id].text }
	d.Solution = Solution{text("solution.name"), text("solution.definition"), text("solution.author"), text("solution.description")}
	d.Build = Build{
		Language:                trace.Language(text("build.language")),
		EntryPoint:              text("build.entry_point"),
		DestinationPassingStyle: true,
		Binding:                 text("build.binding"),
		Dependencies:            d.values["build.dependencies"].list,
		SourceDir:               text("build.source_dir"),
	}
	if v, ok := d.values["build.destination_passing_style"]; ok {
		d.Build.DestinationPassingStyle = v.on
	}
	d.Bench = Bench{text("bench.profile"), text("bench.baseline"), text("bench.set")}
	d.Submit = Submit{text("submit.tag"), text("submit.remote")}

	d.oneOf("build.language", languages)
	d.oneOf("build.binding", bindings)
	d.oneOf("bench.profile", profiles)
	if v, ok := d.values["solution.definition"]; ok {
		if defs := trackDefinitions(v.text); defs != nil {
			d.fault("track-name", v.at, "write "+quoted(defs), "definition %q is a track, not a definition", v.text)
		}
	}
	if v, ok := d.values["submit.tag"]; ok && !refName(strings.ReplaceAll(strings.Replace(v.text, "{n}", "1", 1), "{definition}", "d")) {
		d.fault("git-name", v.at, "use letters, digits, and . _ - / inside; {n} is the next number, {definition} the definition", "tag %q is not a name for git", v.text)
	}
	if v, ok := d.values["submit.remote"]; ok && !refName(v.text) {
		d.fault("git-name", v.at, "git remote lists them", "remote is not the name of a git remote")
		d.faults[len(d.faults)-1].Excerpt = "" // a URL may hold a password
	}
	if v, ok := d.values["build.entry_point"]; ok {
		d.entryPoint(v)
	}
	if v, ok := d.values["build.source_dir"]; !ok {
		d.Build.SourceDir = string(d.Build.Language)
	} else if path.IsAbs(v.text) || slices.Contains(strings.FieldsFunc(v.text, func(r rune) bool { return r == '/' || r == '\\' }), "..") {
		d.fault("source-dir", v.at, "it is relative to solution/ and stays below it", "source_dir %q is not a folder below solution/", v.text)
	}
}

func (d *decoder) oneOf(id string, allowed []string) {
	v, ok := d.values[id]
	if !ok || slices.Contains(allowed, v.text) {
		return
	}
	hint := ""
	if near := trace.Nearest(v.text, allowed); slices.Contains(allowed, strings.ToLower(v.text)) {
		hint = fmt.Sprintf("write %q", strings.ToLower(v.text))
	} else if len(near) > 0 {
		hint = "did you mean " + quoted(near) + "?"
	}
	_, name, _ := strings.Cut(id, ".")
	d.fault("unknown-value", v.at, hint, "%s %q is not one of %s", name, v.text, strings.Join(allowed, ", "))
}

func (d *decoder) entryPoint(v value) {
	file, symbol, ok := strings.Cut(v.text, "::")
	if !ok || strings.Count(v.text, "::") != 1 {
		d.fault("entry-point", v.at, d.entryHint(v.text), "entry_point %q is not file::symbol", v.text)
		return
	}
	if file == "" {
		d.fault("entry-point", v.at, fmt.Sprintf("write %q", defaultFile(d.Build.Language)+"::"+symbol), "entry_point %q names no file", v.text)
	}
	if symbol == "" {
		d.fault("entry-point", v.at, fmt.Sprintf("write %q", file+"::kernel"), "entry_point %q names no symbol", v.text)
	} else if !identifier(symbol) {
		d.fault("entry-point", v.at, "write the function's name alone", "entry_point %q: symbol %q is not an identifier", v.text, symbol)
	}
}

// entryHint says what was meant by an entry point that is not file::symbol.
func (d *decoder) entryHint(text string) string {
	if strings.Count(text, "::") > 1 {
		return `write one "::", between the file and the symbol`
	}
	file, symbol := guessEntry(d.Build.Language, text)
	return fmt.Sprintf("write %q", file+"::"+symbol)
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

// refName tells whether the text is a safe name of a tag or remote.
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

func joined(ps []part, sep string) string {
	names := make([]string, len(ps))
	for i, p := range ps {
		names[i] = p.name
	}
	return strings.Join(names, sep)
}

// article names the kind of a TOML value in prose.
func article(k unstable.Kind) string {
	switch k {
	case unstable.String:
		return "a string"
	case unstable.Bool:
		return "true or false"
	case unstable.Integer:
		return "an integer"
	case unstable.Float:
		return "a number"
	case unstable.Array:
		return "an array"
	case unstable.InlineTable, unstable.Table:
		return "a table"
	case unstable.ArrayTable:
		return "an array of tables"
	}
	return "a date or time"
}
