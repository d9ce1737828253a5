package remote

// A Key describes one that a table [remote.NAME] may have; a provider's Keys are the ones that its New asks for.
type Key struct {
	Name    string
	Type    string // in the words that a Table's faults have: "a string", "a list of strings"
	Default string // "" where it must be there, or where nothing takes its place
	Meaning string // Markdown
}

// What a Key's Type may be.
const (
	StringKey   = "a string"
	BoolKey     = "true or false"
	IntKey      = "a whole number"
	FloatKey    = "a number"
	DurationKey = "a time"
	StringsKey  = "a list of strings"
	IntsKey     = "a list of whole numbers"
)

// CommonKeys are those of every provider.
var CommonKeys = []Key{
	{"provider", StringKey, "the table's name", `kind of the provider: "ssh", "slurm", "aws", "modal", "loopback"`},
	{"gpu", StringKey, "`--gpu`", `kind of GPU: "b200", "h200", ..., "none" for the emulator`},
	{"limit", DurationKey, "30m", `a job is ended on its host after this time: "30m"`},
	{"price", FloatKey, "no price is shown", "USD for one GPU and hour; for the plan, for `--max-cost` and for what `ls` shows"},
}
