// SPDX-License-Identifier: Apache-2.0

package sysdump

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const jwt = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzZWVkIn0.c2VlZC1zaWduYXR1cmU"

func TestText(t *testing.T) {
	for text, want := range map[string]string{
		"--kubeconfig=/etc/kube/config":                                      "--kubeconfig=/etc/kube/config",
		"--api-token=seed":                                                   "--api-token=REDACTED",
		"--password seed --x":                                                "--password REDACTED --x",
		"SLUICE_TOKEN=seed":                                                  "SLUICE_TOKEN=REDACTED",
		`Authorization: Bearer seed-seed`:                                    `Authorization: REDACTED REDACTED`,
		"pods(app=web,vault.io/token=seed)":                                  "pods(app=web,vault.io/token=REDACTED)",
		`{"clientSecret": "seed", "a": 1}`:                                   `{"clientSecret": "REDACTED", "a": 1}`,
		"https://user:seed@example.org/x":                                    "https://REDACTED@example.org/x",
		"redis://:seed@cache:6379/0":                                         "redis://REDACTED@cache:6379/0",
		"token " + jwt + " end":                                              "token REDACTED end",
		"key AKIAABCDEFGHIJKLMNOP end":                                       "key REDACTED end",
		"ghp_0123456789abcdefghijABCDEFGHIJ":                                 "REDACTED",
		"-----BEGIN RSA PRIVATE KEY-----\nseed\nseed":                        "REDACTED",
		"a\n-----BEGIN PRIVATE KEY-----\nseed\n-----END PRIVATE KEY-----\nb": "a\nREDACTED\nb",
		// What is none stays: names, addresses, numbers.
		"payments/checkout-1 10.1.0.5:443 -> [2001:db8::1]:80 sluice_policy": "payments/checkout-1 10.1.0.5:443 -> [2001:db8::1]:80 sluice_policy",
		"2026-11-21T19:30:17.123456789Z http://127.0.0.1:9880/metrics":       "2026-11-21T19:30:17.123456789Z http://127.0.0.1:9880/metrics",
	} {
		require.Equal(t, want, string(Text([]byte(text))))
	}
}

func TestJSON(t *testing.T) {
	for text, want := range map[string]string{
		`{"b": 1, "a": "x"}`:                                              `{"b": 1, "a": "x"}`, // as it is
		`{"labels": {"api-token": "seed", "app": "web"}}`:                 `{"labels":{"api-token":"REDACTED","app":"web"}}`,
		`{"secrets": ["seed", {"x": "seed"}], "tokens": 3, "secret": ""}`: `{"secret":"","secrets":["REDACTED",{"x":"REDACTED"}],"tokens":3}`,
		`{"annotation": "{\"password\":\"seed\",\"n\":\"web\"}"}`:         `{"annotation":"{\"password\":\"REDACTED\",\"n\":\"web\"}"}`,
		`[{"id": 12345678901234567890, "x": "` + jwt + `"}]`:              `[{"id":12345678901234567890,"x":"REDACTED"}]`,
		`"a < b && token=seed"`:                                           `"a < b && token=REDACTED"`,
	} {
		got, err := JSON([]byte(text))
		require.NoError(t, err)
		require.Equal(t, want, string(got))
	}
	_, err := JSON([]byte(`{"token": "seed`))
	require.ErrorContains(t, err, "decode what may hold a secret", "what is not understood is not passed on")
}

// Whatever goes in: what comes out is JSON, and what was given to a secret name is not in it.
func FuzzJSON(f *testing.F) {
	f.Add("token", "seed", `{"a": [1, "x"]}`)
	f.Add("x", "-----BEGIN PRIVATE KEY-----", `"api_key: \"y\""`)
	f.Fuzz(func(t *testing.T, name, value, other string) {
		if !json.Valid([]byte(other)) {
			return
		}
		in, err := json.Marshal(map[string]any{"outer": map[string]any{"my-password-" + name: "seed-" + value}, "other": json.RawMessage(other)})
		require.NoError(t, err)
		out, err := JSON(in)
		require.NoError(t, err)
		require.True(t, json.Valid(out), "%s", out)
		var got struct{ Outer map[string]string }
		require.NoError(t, json.Unmarshal(out, &got))
		for _, v := range got.Outer {
			require.Equal(t, redacted, v)
		}
		again, err := JSON(out)
		require.NoError(t, err)
		require.True(t, json.Valid(again))
	})
}

// The hints miss nothing that a rule matches.
func FuzzHints(f *testing.F) {
	for _, seed := range []string{"a token=b", jwt, "basic abcdefghi", "ghp_0123456789abcdefghijABCDEFGHIJ", "Access.Key: x", "https://a:b@c"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, r := range rules {
			if r.pattern.MatchString(text) {
				require.True(t, suspicious([]byte(text)), "%q", text)
			}
		}
	})
}

func BenchmarkJSON(b *testing.B) {
	row := []byte(`{"namespace": "shop", "name": "checkout-1", "addrs": ["10.1.0.5"], "labels": {"app": "checkout", "team": "` + strings.Repeat("x", 200) + `"}}`)
	b.SetBytes(int64(len(row)))
	for b.Loop() {
		if _, err := JSON(row); err != nil {
			b.Fatal(err)
		}
	}
}
