package event

import (
	"encoding/json"
	"fmt"
	"math"
)

// A Float is a float64 that JSON can carry whatever its value: NaN and infinities are the strings that the trace format
// uses.
type Float float64

// MarshalJSON writes a number, "NaN", "Infinity" or "-Infinity".
func (f Float) MarshalJSON() ([]byte, error) {
	for text, v := range beyond {
		if float64(f) == v || f != f && v != v {
			return []byte(text), nil
		}
	}
	return json.Marshal(float64(f))
}

// UnmarshalJSON reads what MarshalJSON writes.
func (f *Float) UnmarshalJSON(data []byte) error {
	v, ok := beyond[string(data)]
	if !ok {
		if err := json.Unmarshal(data, &v); err != nil {
			return fmt.Errorf("event: %s is not a number", data)
		}
	}
	*f = Float(v)
	return nil
}

// beyond are the values that JSON has no numbers for.
var beyond = map[string]float64{`"NaN"`: math.NaN(), `"Infinity"`: math.Inf(1), `"-Infinity"`: math.Inf(-1)}
