package activity

import (
	"encoding/binary"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"fisub/device"
)

// record returns a record of size bytes: 0xcc, except for the fields, each at its offset.
func record(size int, fields map[int]any) []byte {
	r := slices.Repeat([]byte{0xcc}, size)
	for at, v := range fields {
		b, err := binary.Append(nil, binary.LittleEndian, v)
		if err != nil {
			panic(err)
		}
		copy(r[at:], b)
	}
	return r
}

var (
	apiRecord    = record(36, map[int]any{0: uint32(5), 4: uint32(284), 8: uint64(100), 28: uint32(5000), 32: uint32(7)})
	driverRecord = record(36, map[int]any{0: uint32(4), 4: uint32(284), 8: uint64(200), 28: uint32(5001), 32: uint32(8)})
	copyRecord   = record(48, map[int]any{0: uint32(1), 4: byte(8), 8: uint64(4096), 16: uint64(110), 24: uint64(120),
		44: uint32(7)})
	setRecord = record(48, map[int]any{0: uint32(2), 4: uint32(3), 8: uint64(64), 16: uint64(130), 24: uint64(140),
		44: uint32(8)})
	kernelRecord = record(108, map[int]any{0: uint32(10), 6: uint16(40), 16: uint64(150), 24: uint64(160),
		52: []int32{1, 2, 3}, 64: []int32{32, 4, 1},
		76: []int32{1024, 2048}, 84: uint32(16), 92: uint32(9), 104: uint32(1)})
)

func TestDecode(t *testing.T) {
	names := []Name{{"_Z1a", "a"}, {"_Z5firstPfi", "first(float*, int)"}}
	launches, activities, err := Decode(slices.Concat(apiRecord, copyRecord, driverRecord, setRecord, kernelRecord), names)
	if err != nil {
		t.Fatal(err)
	}
	if want := []Launch{{100, 5000, 7, "cudaLaunchHostFunc"}, {200, 5001, 8, ""}}; !slices.Equal(launches, want) {
		t.Errorf("got %v, want %v", launches, want)
	}
	want := []Activity{memcpy(8, 4096, 7, 110, 120), memset(3, 64, 8, 130, 140),
		{Symbol: "_Z5firstPfi", Start: 150, End: 160, Correlation: 9,
			Activity: device.Activity{Kind: "kernel", Name: "first(float*, int)", Grid: [3]int{1, 2, 3}, Block: [3]int{32, 4, 1},
				Registers:         40,
				StaticSharedBytes: 1024, DynamicSharedBytes: 2048, LocalBytes: 16}}}
	if !reflect.DeepEqual(activities, want) {
		t.Errorf("got %+v, want %+v", activities, want)
	}
}

func TestDecodeNonsense(t *testing.T) {
	names := []Name{{"a", "a"}, {"b", "b"}}
	for _, tt := range []struct {
		name  string
		data  []byte
		names []Name
		text  string
	}{
		{"half a kind", []byte{5, 0}, names, "invalid record at byte 0 of 2"},
		{"half a record", slices.Concat(apiRecord, kernelRecord[:107]), names, "invalid record at byte 36 of 143"},
		{"another kind", record(48, map[int]any{0: uint32(3)}), names, "invalid record"},
		{"a name that is not there", kernelRecord, names[:1], "a kernel has name index 1 of 1"},
		{"too many names", nil, make([]Name, MaxNames+1), "16385 names"},
		{"a name too long", nil, []Name{{"a", strings.Repeat("x", maxName+1)}}, "name has 65537 bytes"},
	} {
		_, _, err := Decode(tt.data, tt.names)
		if !errors.Is(err, device.ErrTimer) || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.text)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(slices.Concat(apiRecord, copyRecord, driverRecord, setRecord, kernelRecord))
	f.Fuzz(func(t *testing.T, data []byte) {
		launches, activities, err := Decode(data, []Name{{"a", "a"}, {"b", "b"}})
		if n := 36*len(launches) + 48*len(activities); err == nil && n > len(data) || err != nil && launches != nil {
			t.Errorf("%d launches and %d activities of %d bytes, %v", len(launches), len(activities), len(data), err)
		}
	})
}
