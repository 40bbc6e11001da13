// SPDX-License-Identifier: Apache-2.0

package overlaykeys

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-net/sluice/bpf"
)

// parseKeys parses what is in a file of keys: lines of 32 hexadecimal digits, beside empty ones and
// those that begin with a #. Errors name the line and say nothing of what is in it.
func parseKeys(text string) (keys []bpf.OverlayKey, err error) {
	line := 0
	for content := range strings.Lines(text) {
		line++
		content = strings.TrimSpace(content)
		if content == "" || content[0] == '#' {
			continue
		}
		raw, err := hex.DecodeString(content)
		switch {
		case err != nil || len(raw) != bpf.OverlayKeySize:
			return nil, fmt.Errorf("line %d is no key of %d hexadecimal digits", line, 2*bpf.OverlayKeySize)
		case isConstant(raw):
			return nil, fmt.Errorf("line %d: a key of equal bytes is no secret", line)
		case len(keys) == bpf.OverlayKeys:
			return nil, fmt.Errorf("line %d: more than %d keys", line, bpf.OverlayKeys)
		}
		key := bpf.NewOverlayKey([bpf.OverlayKeySize]byte(raw))
		if slices.Contains(keys, key) {
			return nil, fmt.Errorf("line %d has the same key again", line)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, errors.New("no key in it")
	}
	return keys, nil
}

func isConstant(raw []byte) bool {
	return !slices.ContainsFunc(raw, func(b byte) bool { return b != raw[0] })
}
