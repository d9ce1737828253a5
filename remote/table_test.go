package remote_test

import (
	"math"
	"reflect"
	"testing"
	"time"

	"fisub/remote"
)

func TestTable(t *testing.T) {
	table := remote.NewTable("lab", map[string]any{"provider": "ssh", "gpu": "b200", "limit": "1h30m", "price": int64(6), "user": "me", "port": int64(22),
		"native": true, "hosts": []any{"a", "b"}, "gpus": []any{int64(0), int64(1)}, "share": 0.5, "wait": "10s"})
	got := []any{table.Common(), table.String("user", ""), table.Int("port", 1), table.Bool("native", false), table.Strings("hosts", nil),
		table.Ints("gpus", nil), table.Float("share", 0), table.Duration("wait", 0), table.Has("none"), table.Name()}
	want := []any{remote.Common{Provider: "ssh", GPU: "b200", Limit: 90 * time.Minute, Price: 6}, "me", 22, true, []string{"a", "b"}, []int{0, 1}, 0.5,
		10 * time.Second, false, "lab"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if err := table.Err(); err != nil {
		t.Errorf("Err: got %v, want nil", err)
	}
}

func TestTableDefaults(t *testing.T) {
	table := remote.NewTable("ssh", nil)
	got := []any{table.Common(), table.String("user", "u"), table.Int("port", 22), table.Bool("native", true), table.Strings("hosts", []string{"h"}),
		table.Ints("gpus", []int{0}), table.Float("share", 1.5), table.Duration("wait", time.Second), table.Err()}
	want := []any{remote.Common{Provider: "ssh"}, "u", 22, true, []string{"h"}, []int{0}, 1.5, time.Second, error(nil)}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestTableFaults(t *testing.T) {
	table := remote.NewTable("lab", map[string]any{"price": math.NaN(), "limit": "-1s", "gpu": int64(3), "hosts": "a", "gpus": []any{int64(0), "1"}, "wait": int64(5),
		"port": "22", "native": map[string]any{"secret": "x"}, "hots": []any{}})
	table.Strings("hosts", nil)
	table.Ints("gpus", nil)
	table.Duration("wait", 0)
	table.Int("port", 0)
	table.Bool("native", false)
	table.Common()
	table.Fault("port", "must be below %d", 65536)
	want := `remote.lab.gpu: want a string, got 3
remote.lab.limit: must be above zero
remote.lab.price: NaN is no price in USD per GPU and hour
remote.lab.hosts: want a list of strings, got "a"
remote.lab.gpus: want a list of whole numbers, got [0 1]
remote.lab.wait: want a time such as "30m", got 5
remote.lab.port: want a whole number, got "22"
remote.lab.native: want true or false, got a table
remote.lab.port: must be below 65536
remote.lab.hots: unknown key; did you mean hosts?`
	if err := table.Err(); err == nil || err.Error() != want {
		t.Errorf("got:\n%v\nwant:\n%s", err, want)
	}
}
