// Package dump writes a dump folder for `traindoctor compare` (docs/dump-format.md).
//
//	w, err := dump.Create("dump", map[string]any{"lr": 1e-3, "heads": 4})
//	...
//	err = dump.Write(w, "blocks.0.mlp.up", "activation", 0, []int{2, 16, 128}, values, nil)
//	...
//	err = w.Close()
//
// What was written stays readable if the program dies.
package dump

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Number is what a tensor may hold. For bfloat16 and the like, see docs/dump-format.md.
type Number interface {
	float32 | float64 | int8 | int16 | int32 | int64 | uint8
}

// Writer writes one tensor after the other. It is not safe for concurrent use.
type Writer struct {
	index, data *os.File
	offset      int64
}

type row struct {
	Name   string         `json:"name"`
	Kind   string         `json:"kind"`
	Step   int            `json:"step"`
	Shape  []int          `json:"shape"`
	Dtype  string         `json:"dtype"`
	File   string         `json:"file"`
	Offset int64          `json:"offset"`
	About  map[string]any `json:"about,omitempty"`
}

// Create makes the folder if it is missing. The settings may be nil.
func Create(folder string, settings map[string]any) (*Writer, error) {
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return nil, err
	}
	data, err := os.Create(filepath.Join(folder, "tensors.bin"))
	if err != nil {
		return nil, err
	}
	index, err := os.Create(filepath.Join(folder, "index.jsonl"))
	if err != nil {
		data.Close()
		return nil, err
	}
	w := &Writer{index: index, data: data}
	if settings == nil {
		settings = map[string]any{}
	}
	if err := w.line(map[string]any{"format": 1, "settings": settings}); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// Write adds a tensor; values lie row-major, about may be nil.
func Write[N Number](w *Writer, name, kind string, step int, shape []int, values []N, about map[string]any) error {
	count := 1
	for _, length := range shape {
		count *= length
	}
	if count != len(values) {
		return fmt.Errorf("dump: %s has %d values, its shape %v needs %d", name, len(values), shape, count)
	}
	var raw bytes.Buffer
	if err := binary.Write(&raw, binary.LittleEndian, values); err != nil {
		return err
	}
	// The numbers go first: the index never names bytes that are not there yet.
	written, err := w.data.Write(raw.Bytes())
	offset := w.offset
	w.offset += int64(written)
	if err != nil {
		return err
	}
	if shape == nil {
		shape = []int{} // one number: [] in JSON, not null
	}
	dtype := fmt.Sprintf("%T", *new(N)) // Go's names are those of the format
	return w.line(row{name, kind, step, shape, dtype, "tensors.bin", offset, about})
}

func (w *Writer) line(value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	_, err = w.index.Write(append(text, '\n'))
	return err
}

// Close closes both files and says what went wrong.
func (w *Writer) Close() error {
	data, index := w.data.Close(), w.index.Close()
	if data != nil {
		return data
	}
	return index
}
