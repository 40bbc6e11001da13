// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	kjson "sigs.k8s.io/json"
)

// unmarshal decodes an object into a struct. A value of a wrong type is left out
// and reported with its path; all others are kept. With strict, fields of the
// specification that the struct does not have are reported too. The error says
// that data is no JSON object.
func unmarshal(data []byte, into any, strict bool, errs *fieldErrors) error {
	err := unmarshalFitting(data, into, strict, errs)
	if err == nil {
		return nil
	}
	if syntax, _ := kjson.SyntaxErrorOffset(err); syntax {
		return fmt.Errorf("parse JSON: %w", err)
	}

	// The decoder names but one mistake, and without its index in a list. Look
	// at the whole, and decode what is left without the mistakes.
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var tree any
	if err := d.Decode(&tree); err != nil {
		return fmt.Errorf("parse JSON: %w", err)
	}
	target := reflect.ValueOf(into).Elem()
	kept, ok := prune(tree, target.Type(), "", errs)
	if !ok {
		return errors.New("not an object")
	}
	if data, err = json.Marshal(kept); err != nil {
		return fmt.Errorf("encode JSON: %w", err)
	}
	target.SetZero()
	if err := unmarshalFitting(data, into, strict, errs); err != nil {
		return fmt.Errorf("decode JSON: %w", err)
	}
	return nil
}

// maxUnknown is how many unknown fields the decoder names at most.
const maxUnknown = 100

// unmarshalFitting decodes an object whose values all have the right type.
func unmarshalFitting(data []byte, into any, strict bool, errs *fieldErrors) error {
	if !strict {
		return kjson.UnmarshalCaseSensitivePreserveInts(data, into)
	}
	unknown, err := kjson.UnmarshalStrict(data, into, kjson.DisallowUnknownFields)
	if err != nil {
		return err
	}
	for _, u := range unknown {
		var field kjson.FieldError
		if !errors.As(u, &field) {
			continue
		}
		if path := field.FieldPath(); within(path, "spec") || within(path, "specs") {
			errs.add(path, "no such field")
		}
	}
	if len(unknown) >= maxUnknown { // there may be more, anywhere
		errs.add("spec", "unknown fields")
		errs.add("specs", "unknown fields")
	}
	return nil
}

// prune removes from a JSON value what does not fit a type, and reports it. It
// returns false if nothing is left. A list keeps its length, so that what is
// said about its items later names the right one.
func prune(value any, t reflect.Type, path string, errs *fieldErrors) (any, bool) {
	if t.Kind() == reflect.Pointer {
		return prune(value, t.Elem(), path, errs)
	}
	if value == nil {
		return nil, true
	}
	mismatch := func(want string) (any, bool) {
		errs.add(path, fmt.Sprintf("must be %s, is %s", want, describe(value)))
		return nil, false
	}
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		object, ok := value.(map[string]any)
		if !ok {
			return mismatch("an object")
		}
		pruneObject(object, t, path, errs)
	case reflect.Slice:
		list, ok := value.([]any)
		if !ok {
			return mismatch("a list")
		}
		for i := range list {
			if kept, ok := prune(list[i], t.Elem(), path+"["+strconv.Itoa(i)+"]", errs); ok {
				list[i] = kept
			} else {
				list[i] = nil
			}
		}
	case reflect.String:
		if _, ok := value.(string); !ok {
			return mismatch("a text")
		}
	case reflect.Bool:
		if _, ok := value.(bool); !ok {
			return mismatch("true or false")
		}
	case reflect.Int, reflect.Int32, reflect.Int64:
		number, ok := value.(json.Number)
		if !ok {
			return mismatch("a number")
		}
		if _, err := strconv.ParseInt(number.String(), 10, t.Bits()); err != nil {
			errs.add(path, number.String()+" is no whole number of the right size")
			return nil, false
		}
	}
	return value, true
}

// pruneObject does what prune does, to the fields of an object.
func pruneObject(object map[string]any, t reflect.Type, path string, errs *fieldErrors) {
	member := func(key string, t reflect.Type) {
		value, found := object[key]
		if !found {
			return
		}
		if kept, ok := prune(value, t, joinPath(path, key), errs); ok {
			object[key] = kept
		} else {
			delete(object, key)
		}
	}
	if t.Kind() == reflect.Map {
		for key := range object {
			member(key, t.Elem())
		}
		return
	}
	for f := range t.Fields() {
		if f.Anonymous {
			pruneObject(object, f.Type, path, errs)
			continue
		}
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		member(key, f.Type)
	}
}

func joinPath(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func describe(value any) string {
	switch value.(type) {
	case map[string]any:
		return "an object"
	case []any:
		return "a list"
	case string:
		return "a text"
	case bool:
		return "true or false"
	default:
		return "a number"
	}
}
