// SPDX-License-Identifier: Apache-2.0

package sysdump

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"unicode"
)

// redacted stands for what looks like a secret.
const redacted = "REDACTED"

// secretWord matches in the names of what is secret: of fields, labels, variables
// and flags.
const secretWord = `(?:token|secret|passw(?:or)?d|passphrase|credential|api[-_.]?key|private[-_.]?key|access[-_.]?key|authorization|bearer)`

// hints are what is in all that the rules match, in lower case. To look for them
// takes a hundredth of the time of the rules, and most lines and rows have none.
var hints = [][]byte{
	[]byte("token"), []byte("secret"), []byte("passw"), []byte("passphrase"), []byte("credential"), []byte("key"),
	[]byte("authorization"), []byte("bearer"), []byte("basic"), []byte("eyj"), []byte("akia"), []byte("asia"),
	[]byte("ghp_"), []byte("gho_"), []byte("ghu_"), []byte("ghs_"), []byte("ghr_"), []byte("github_pat_"), []byte("glpat-"),
	[]byte("xox"), []byte("aiza"), []byte("://"),
}

// suspicious reports whether there may be anything to replace. The rules find
// letters other than those of ASCII alike that ToLower does not.
func suspicious(text []byte) bool {
	if bytes.ContainsFunc(text, func(r rune) bool { return r > unicode.MaxASCII }) {
		return true
	}
	lower := bytes.ToLower(text)
	return slices.ContainsFunc(hints, func(hint []byte) bool { return bytes.Contains(lower, hint) })
}

// A rule replaces what looks like a secret.
type rule struct {
	pattern *regexp.Regexp
	with    string
}

var (
	secretName = regexp.MustCompile(`(?i)` + secretWord)

	privateKey = regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)`)

	rules = []rule{ // for a line
		// A JSON web token, as service accounts have.
		{regexp.MustCompile(`eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*`), redacted},
		{regexp.MustCompile(`(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}`), "$1 " + redacted},
		// Tokens that their issuers mark: of AWS, GitHub, GitLab, Slack, Google.
		{regexp.MustCompile(`\b(?:A[KS]IA[0-9A-Z]{16}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[a-z]-[\w-]{10,}|AIza[\w-]{30,})\b`), redacted},
		// The password in a URL.
		{regexp.MustCompile(`://[^/\s:@"]*:[^/\s@"]+@`), "://" + redacted + "@"},
		// What is given to a name: token=x, "password": "x", --api-key x.
		{regexp.MustCompile(`(?i)([\w./-]*` + secretWord + `[\w./-]*["']?\s*[:=]\s*["']?)[^\s"',;&)}\]|]+`), "${1}" + redacted},
		{regexp.MustCompile(`(?i)(--[\w-]*` + secretWord + `[\w-]*\s+)[^\s"']+`), "${1}" + redacted},
	}
)

// Text replaces what looks like a secret in a text.
func Text(text []byte) []byte {
	if bytes.Contains(text, []byte("PRIVATE KEY-----")) {
		text = privateKey.ReplaceAll(text, []byte(redacted))
	}
	clean := make([]byte, 0, len(text))
	for line := range bytes.Lines(text) {
		if suspicious(line) {
			for _, r := range rules {
				line = r.pattern.ReplaceAll(line, []byte(r.with))
			}
		}
		clean = append(clean, line...)
	}
	return clean
}

// JSON replaces what looks like a secret in a JSON value: strings by what they
// say, and all that is in a field by its name.
func JSON(data []byte) ([]byte, error) {
	if !suspicious(data) {
		return data, nil
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var value any
	if err := dec.Decode(&value); err != nil {
		return nil, fmt.Errorf("decode what may hold a secret: %w", err)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(clean(value)); err != nil {
		return nil, fmt.Errorf("encode without secrets: %w", err)
	}
	return bytes.TrimSpace(b.Bytes()), nil
}

func clean(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for name, field := range v {
			if secretName.MatchString(name) {
				v[name] = hide(field)
			} else {
				v[name] = clean(field)
			}
		}
	case []any:
		for i := range v {
			v[i] = clean(v[i])
		}
	case string:
		return string(Text([]byte(v)))
	}
	return value
}

// hide replaces the strings of what a secret name names. Numbers stay: they are
// counts of something.
func hide(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for name, field := range v {
			v[name] = hide(field)
		}
	case []any:
		for i := range v {
			v[i] = hide(v[i])
		}
	case string:
		if v != "" {
			return redacted
		}
	}
	return value
}
