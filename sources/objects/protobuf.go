// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// protobufPrefix begins what an API server encodes as protobuf: an envelope follows, with the
// kind of the object and its bytes.
var protobufPrefix = []byte("k8s\x00")

// IsProtobuf reports whether the data of an object or a listing is protobuf, not JSON.
func IsProtobuf(data []byte) bool { return bytes.HasPrefix(data, protobufPrefix) }

// ProtobufMessage returns the bytes of the object in protobuf data, without the envelope.
func ProtobufMessage(data []byte) ([]byte, error) {
	_, raw, err := openEnvelope(data)
	return raw, err
}

// envelope is the message runtime.Unknown of the API machinery.
type envelope struct {
	TypeMeta typeMeta   `protobuf:"bytes,1"`
	Raw      rawMessage `protobuf:"bytes,2"`
}

// rawMessage is a field whose bytes are kept as they are, without a copy.
type rawMessage []byte

// openEnvelope returns what the data is of, and its bytes.
func openEnvelope(data []byte) (of typeMeta, raw []byte, err error) {
	var e envelope
	err = unmarshalProtobuf(data[len(protobufPrefix):], &e, false, nil)
	return e.TypeMeta, e.Raw, err
}

// oneProtobuf decodes one object. It may be of another kind, such as an error.
func oneProtobuf(
	k *Kind, data []byte, message func(*Kind, []byte) (*Object, error),
) (*Object, error) {
	of, raw, err := openEnvelope(data)
	if err != nil {
		return nil, err
	}
	if of.Kind != k.Kind {
		return &Object{Kind: of.Kind, Err: fmt.Errorf("is of kind %s, not %s", of.Kind, k.Kind)}, nil
	}
	o, err := message(k, raw)
	if err == nil {
		o.Kind = of.Kind
	}
	return o, err
}

// listProtobuf decodes a listing.
func listProtobuf(
	k *Kind, data []byte, message func(*Kind, []byte) (*Object, error),
) (*List, error) {
	of, raw, err := openEnvelope(data)
	if err != nil {
		return nil, err
	}
	if err := k.checkList(of); err != nil {
		return nil, err
	}
	var items listOf[rawMessage]
	if err := unmarshalProtobuf(raw, &items, false, nil); err != nil {
		return nil, err
	}
	out := items.list()
	for i, item := range items.Items {
		if out.Objects[i], err = message(k, item); err != nil {
			return nil, fmt.Errorf("items[%d]: %w", i, err)
		}
	}
	return out, nil
}

// unmarshalProtobuf decodes a message into a struct. A field is filled if it has a tag with its
// number: `protobuf:"bytes,3"`, as the types of the API have it. All others are skipped, which
// is why this is fast. With strict, fields of the specification that the struct does not have
// are reported with their number: a newer API server may know more of them.
func unmarshalProtobuf(data []byte, into any, strict bool, errs *fieldErrors) error {
	v := reflect.ValueOf(into).Elem()
	r := protobufReader{}
	if strict {
		r.unknown = func(at *fieldPath, number protowire.Number) {
			if path := at.String(); within(path, "spec") {
				errs.add(joinPath(path, "#"+strconv.Itoa(int(number))), "no such field")
			}
		}
	}
	if err := r.message(data, v, nil); err != nil {
		return fmt.Errorf("parse protobuf: %w", err)
	}
	return nil
}

// protobufField is a field of a struct that has a number.
type protobufField struct {
	index  []int
	name   string // in JSON
	isTime bool   // a time that the struct has as text
	isMap  bool   // a map of which the struct has some keys
}

// protobufFields are the fields of a type of struct, by number.
var protobufFields sync.Map // map[reflect.Type][]*protobufField

func fieldsOf(t reflect.Type) []*protobufField {
	if known, found := protobufFields.Load(t); found {
		return known.([]*protobufField)
	}
	var fields []*protobufField
	for f := range t.Fields() {
		if f.Anonymous {
			for number, inner := range fieldsOf(f.Type) {
				if inner != nil {
					inner := *inner
					inner.index = append(slices.Clone(f.Index), inner.index...)
					fields = setField(fields, number, &inner)
				}
			}
			continue
		}
		parts := strings.Split(f.Tag.Get("protobuf"), ",")
		if len(parts) < 2 {
			continue
		}
		number, err := strconv.Atoi(parts[1])
		if err != nil {
			panic(err) // the tags are of this program, or of the API's types
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		fields = setField(fields, number, &protobufField{
			index: f.Index, name: name, isTime: slices.Contains(parts, "time"),
			isMap: slices.Contains(parts, "map"),
		})
	}
	protobufFields.Store(t, fields)
	return fields
}

func setField(fields []*protobufField, number int, f *protobufField) []*protobufField {
	if missing := number + 1 - len(fields); missing > 0 {
		fields = append(fields, make([]*protobufField, missing)...)
	}
	fields[number] = f
	return fields
}

// fieldPath is the path of a field, the last part first: most are never asked for.
type fieldPath struct {
	parent *fieldPath
	name   string
	index  int // in a list, else -1
}

func (p *fieldPath) String() string {
	if p == nil {
		return ""
	}
	path := joinPath(p.parent.String(), p.name)
	if p.index >= 0 {
		return indexed(path, p.index)
	}
	return path
}

type protobufReader struct {
	unknown func(at *fieldPath, number protowire.Number)
}

var errWireType = errors.New("another type of field than expected")

// message decodes the fields of a message into a struct.
func (r *protobufReader) message(data []byte, into reflect.Value, at *fieldPath) error {
	fields := fieldsOf(into.Type())
	for len(data) > 0 {
		number, wire, n := protowire.ConsumeTag(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		if n = protowire.ConsumeFieldValue(number, wire, data); n < 0 {
			return protowire.ParseError(n)
		}
		value := data[:n]
		data = data[n:]
		if int(number) >= len(fields) || fields[number] == nil {
			if r.unknown != nil {
				r.unknown(at, number)
			}
			continue
		}
		f := fields[number]
		if err := r.field(f, wire, value, into.FieldByIndex(f.index), at); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return nil
}

func (r *protobufReader) field(
	f *protobufField, wire protowire.Type, value []byte, into reflect.Value, at *fieldPath,
) error {
	index := -1
	if into.Kind() == reflect.Slice && into.Type() != reflect.TypeFor[rawMessage]() {
		index = into.Len()
		into.Grow(1)
		into.SetLen(index + 1)
		into = into.Index(index)
	}
	if into.Kind() == reflect.Pointer {
		if into.IsNil() {
			into.Set(reflect.New(into.Type().Elem()))
		}
		into = into.Elem()
	}
	switch wire {
	case protowire.VarintType:
		number, _ := protowire.ConsumeVarint(value)
		return setNumber(int64(number), into)
	case protowire.BytesType:
		b, _ := protowire.ConsumeBytes(value)
		if r.unknown != nil {
			at = &fieldPath{parent: at, name: f.name, index: index}
		}
		return r.bytes(f, b, into, at)
	}
	return errWireType
}

func setNumber(number int64, into reflect.Value) error {
	switch into.Kind() {
	case reflect.Bool:
		into.SetBool(number != 0)
	case reflect.Int, reflect.Int32, reflect.Int64:
		into.SetInt(number)
	default:
		return errWireType
	}
	return nil
}

// bytes decodes what is of some length: a text, a message, an entry of a map.
func (r *protobufReader) bytes(
	f *protobufField, b []byte, into reflect.Value, at *fieldPath,
) error {
	switch into.Kind() {
	case reflect.Slice:
		into.SetBytes(b)
	case reflect.String:
		text := string(b)
		if f.isTime {
			var err error
			if text, err = timeText(b); err != nil {
				return err
			}
		}
		into.SetString(text)
	case reflect.Map:
		var e mapEntry
		if err := r.message(b, reflect.ValueOf(&e).Elem(), at); err != nil {
			return err
		}
		if into.IsNil() {
			into.Set(reflect.MakeMap(into.Type()))
		}
		into.SetMapIndex(reflect.ValueOf(e.Key), reflect.ValueOf(e.Value))
	case reflect.Interface:
		value, err := intOrText(b)
		if err != nil {
			return err
		}
		into.Set(reflect.ValueOf(value))
	case reflect.Struct:
		if f.isMap {
			return r.knownKey(b, into, at)
		}
		return r.message(b, into, at)
	default:
		return errWireType
	}
	return nil
}

// mapEntry is an entry of a map of texts.
type mapEntry struct {
	Key   string `protobuf:"bytes,1"`
	Value string `protobuf:"bytes,2"`
}

// knownKey decodes an entry of a map into the field of a struct that is named as its key.
func (r *protobufReader) knownKey(b []byte, into reflect.Value, at *fieldPath) error {
	var e mapEntry
	if err := r.message(b, reflect.ValueOf(&e).Elem(), at); err != nil {
		return err
	}
	for f := range into.Type().Fields() {
		if f.Tag.Get("json") == e.Key {
			into.FieldByIndex(f.Index).SetString(e.Value)
		}
	}
	return nil
}

// timeText returns a time as JSON has it, nothing for no time.
func timeText(b []byte) (string, error) {
	var t struct {
		Seconds int64 `protobuf:"varint,1"`
	}
	if err := unmarshalProtobuf(b, &t, false, nil); err != nil || len(b) == 0 {
		return "", err
	}
	return time.Unix(t.Seconds, 0).UTC().Format(time.RFC3339), nil
}

// intOrText returns what a number or a text is as JSON: an int64 or a string.
func intOrText(b []byte) (any, error) {
	var v struct {
		Type   int64  `protobuf:"varint,1"` // 0 is a number
		Number int64  `protobuf:"varint,2"`
		Text   string `protobuf:"bytes,3"`
	}
	if err := unmarshalProtobuf(b, &v, false, nil); err != nil {
		return nil, err
	}
	if v.Type == 0 {
		return v.Number, nil
	}
	return v.Text, nil
}
