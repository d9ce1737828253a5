package pyworker

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"fisub/bench/worker"
)

// No code of a solution runs when fisub reads the outputs or prepares the next call.
func TestReadingRunsNoCode(t *testing.T) {
	const prelude = `import collections, gc, sys, torch
from torch.utils._python_dispatch import TorchDispatchMode
active = []
def late(*job, **_):
    raise ValueError("code of the solution ran outside of the call")
def later(frame, *event):
    if frame.f_code.co_name in ("whole", "store", "returned", "alias", "results", "synchronize"):
        late()
    return later
class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *args, **kwargs):
        late()
class Late(list):
    def __iter__(self):
        late()
    def __len__(self):
        late()
class Meta(type):
    def __eq__(cls, other):
        return other is torch.Tensor
    __hash__ = type.__hash__
class Pretender(metaclass=Meta):
    def __getattr__(self, name):
        late()
class Function(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return late() if active else func(*args, **(kwargs or {}))
class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return late() if active else func(*args, **(kwargs or {}))
def stay(mode, out):
    mode.__enter__()
    active.append(1)
    return out
reading = ("whole", "store", "returned", "alias", "results", "synchronize", "write", "quiet", "passed", "altered")
def below():
    frame, names = sys._getframe(1), []
    while frame:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return any(name in reading for name in names)
def watch(out):
    sys.addaudithook(lambda name, *_: late() if active and name not in ("sys._getframe", "object.__getattr__") and below() else None)
    active.append(1)
    return out
failed = []
def collect(out):
    gc.callbacks.append(lambda *event: failed.append(1) if below() else None)
    gc.set_threshold(1)
    if failed:
        late()
    return out
def replace(out):
    torch.Tensor.cpu = late
    return out
def lazy(t):
    if "torch._lazy.ts_backend" not in sys.modules:
        import torch._lazy.ts_backend
        torch._lazy.ts_backend.init()
    return t.to("lazy")
def attributes(t):
    for name in ("cpu", "to", "detach", "contiguous", "clone", "view", "reshape", "numel", "data_ptr", "resolve_conj", "is_conj"):
        setattr(t, name, late)
    return t
`
	shared := open(t, command(t))
	for _, tc := range []struct {
		name, body string
		passing    bool
		kind       worker.Kind // of the error; "" if the outputs are right
		text       string
	}{
		{"tensors", "return x * c, x.sum()", false, "", ""},
		{"list", "return [x * c, x.sum()]", false, "", ""},
		{"named tuple", "return collections.namedtuple('Out', 'y total')(x * c, x.sum())", false, "", ""},
		{"parameter", "return torch.nn.Parameter(x * c), x.sum()", false, "", ""},
		{"numbers", "return (x * c).tolist(), x.sum().item()", false, "", ""},
		{"array", "return (x * c).cpu().numpy(), x.sum()", false, "", ""},
		{"default device", "torch.set_default_device('cpu'); return x * c, x.sum()", false, "", ""},
		{"attributes", "return attributes(x * c), attributes(x.sum())", false, "", ""},
		{"attributes of a passed output", "y.copy_(x * c); total.fill_(x.sum()); attributes(y)", true, "", ""},
		{"function mode", "return stay(Function(), (x * c, x.sum()))", false, "", ""},
		{"dispatch mode", "return stay(Dispatch(), (x * c, x.sum()))", false, "", ""},
		{"function mode, passed", "y.copy_(x * c); total.fill_(x.sum()); stay(Function(), 0)", true, "", ""},
		{"dispatch mode, passed", "y.copy_(x * c); total.fill_(x.sum()); stay(Dispatch(), 0)", true, "", ""},
		{"late list", "return Late([x * c, x.sum()])", false, "", ""}, // read without its iterator

		{"profile later", "sys.setprofile(later); return x * c, x.sum()", false, "", ""},
		{"trace later", "sys.settrace(later); return x * c, x.sum()", false, "", ""},
		{"lazy", "return (x * c).as_subclass(Lazy), x.sum()", false, worker.Lacking,
			"output 'y' is of type Lazy, a subclass of torch.Tensor: fisub reads only torch.Tensor"},
		{"lazy passed output", "y.copy_(x * c); total.fill_(x.sum()); y.__class__ = Lazy", true, worker.Lacking,
			"output 'y' is of type Lazy, a subclass of torch.Tensor: fisub reads only torch.Tensor"},
		{"audit hook, in own process", "return watch((x * c, x.sum()))", false, "", ""},
		{"collection of garbage, in own process", "return collect((x * c, x.sum()))", false, "", ""},
		{"audit hook, replaced method, in own process", "y.copy_(x * c); total.fill_(x.sum()); replace(watch(0))", true, "", ""},
		{"lazy device, in own process", "return lazy(x * c), x.sum()", false, worker.Lacking, "output 'y' is on lazy:0: fisub reads only"},
		{"pretender", "return Pretender(), x.sum()", false, worker.Call, "TypeError: output 'y' is of type Pretender, not a tensor or numbers"},
		{"none", "return None, x.sum()", false, worker.Call, "TypeError: output 'y' is of type NoneType, not a tensor or numbers"},
	} {
		client := shared
		if strings.Contains(tc.name, "mode") || strings.Contains(tc.name, "own process") { // it stays active in its process
			client = open(t, command(t))
		}
		arguments := "x, c"
		if tc.passing {
			arguments = "x, c, y, total"
		}
		if err := build(t, client, prelude+"def run("+arguments+"):\n    active.clear()\n    "+tc.body+"\n", tc.passing); err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		out := load(t, client)
		call := func(what string, f func() ([]worker.FileTensor, error)) {
			t.Helper()
			written, err := f()
			var we *worker.Error
			if tc.kind != "" {
				if !errors.As(err, &we) || we.Kind != tc.kind || !strings.HasPrefix(we.Text, tc.text) {
					t.Errorf("%s: %s: got %v, want an error of kind %s: %s", tc.name, what, err, tc.kind, tc.text)
				}
				return
			}
			if err != nil {
				t.Errorf("%s: %s: %v", tc.name, what, err)
				return
			}
			at := []int64{0, 256}
			for i, w := range written {
				at[i] = w.Offset
			}
			if got := append(floats(t, out, int(at[0]), 3), floats(t, out, int(at[1]), 1)...); !slices.Equal(got, []float32{5, -10, 150, 29}) {
				t.Errorf("%s: %s: got %v, want 5 -10 150 29", tc.name, what, got)
			}
		}
		call("run", func() ([]worker.FileTensor, error) { return client.Run(t.Context(), out) })
		for what, check := range map[string]worker.Check{"check": {Out: out}, "check after a move": {Out: out, Move: true, Gap: 4096}} {
			call(what, func() ([]worker.FileTensor, error) {
				found, err := client.Check(t.Context(), check)
				if err != nil {
					return nil, err
				}
				return found.Outputs, nil
			})
		}
	}
}
