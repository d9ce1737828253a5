package config

import "strings"

// A Key describes one that a config may have, outside of [remote.NAME].
type Key struct {
	Table, Name string
	Type        string // "a string", "true or false", "an array"
	Required    bool
	Default     string // "" where it is required, or where nothing takes its place
	Allowed     string // what it may be, where not every value of the type
	Meaning     string // Markdown
	Example     string // a line of TOML
}

type about struct{ def, allowed, meaning, example string }

// abouts says of each key of the schema what the decoder need not know.
var abouts = map[string]about{
	"solution.name":        {meaning: "name of the solution, as it stands in traces", example: `name = "my-kernel"`},
	"solution.definition":  {meaning: "the definition that it implements; `fisub dataset ls` lists them. A track, such as gdn, is none", example: `definition = "gdn_decode_qk4_v8_d128_k_last"`},
	"solution.author":      {meaning: "who is to be named", example: `author = "my-team"`},
	"solution.description": {meaning: "what it does, for people. The contest's own packer drops it", example: `description = "one warp for each row"`},

	"build.language":                  {allowed: strings.Join(languages, ", "), meaning: "what the sources are written in", example: `language = "cuda"`},
	"build.entry_point":               {allowed: "file::symbol", meaning: "the source file and the function in it that is called", example: `entry_point = "kernel.cu::kernel"`},
	"build.destination_passing_style": {def: "true", meaning: "true: outputs are the last parameters, and are allocated by the caller; false: they are returned", example: `destination_passing_style = true`},
	"build.binding":                   {def: "tvm-ffi for compiled languages", allowed: strings.Join(bindings, ", "), meaning: "how a compiled solution is loaded. The contest's own packer drops it", example: `binding = "tvm-ffi"`},
	"build.dependencies":              {def: "none", meaning: "Python packages that it imports. The contest's own packer drops them", example: `dependencies = ["einops"]`},
	"build.source_dir":                {def: "the language", allowed: "a folder below solution/", meaning: "folder of the sources, relative to solution/", example: `source_dir = "cuda"`},

	"bench.profile":  {def: "official", allowed: strings.Join(profiles, ", "), meaning: "how often the solution is called and timed; `fisub help timing`", example: `profile = "quick"`},
	"bench.baseline": {def: "none", allowed: "a folder of solution/baselines, reference, none, or FILE.json", meaning: "what is timed in turn with the submission, for speed-ups and the contest's score", example: `baseline = "triton"`},
	"bench.set":      {def: "default", allowed: "a set of the definition", meaning: "the workloads that run; `fisub dataset ls` lists the sets", example: `set = "contest54"`},

	"submit.tag":    {def: "submission-{definition}-{n}", allowed: "letters, digits and . _ - / inside", meaning: "name of the tag; {n} is the next number, {definition} the definition", example: `tag = "v{n}"`},
	"submit.remote": {def: "that of the branch, else origin", allowed: "a name that `git remote` lists", meaning: "where `fisub submit --push` pushes the tag", example: `remote = "origin"`},
}

// Keys are those of all tables, in their order.
func Keys() []Key {
	keys := make([]Key, len(schema))
	for i, k := range schema {
		a := abouts[k.table+"."+k.name]
		keys[i] = Key{Table: k.table, Name: k.name, Type: article(k.kind), Required: k.required != "", Default: a.def,
			Allowed: a.allowed, Meaning: a.meaning, Example: a.example}
	}
	return keys
}
