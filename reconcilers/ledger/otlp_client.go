// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
)

// maxHeaders bounds the file of headers in bytes. Servers take no more.
const maxHeaders = 1 << 16

// reservedHeaders are those that the protocol or the connection decides.
var reservedHeaders = []string{
	"Connection", "Content-Encoding", "Content-Length", "Content-Type", "Host", "Transfer-Encoding",
}

// validateOTLP checks what belongs to the server of OTLP, but not what is in the files: they may
// come later, and change.
func (c Config) validateOTLP() error {
	files := []struct{ flag, path string }{
		{"--ledger-otlp-ca-file", c.LedgerOTLPCAFile},
		{"--ledger-otlp-cert-file", c.LedgerOTLPCertFile},
		{"--ledger-otlp-key-file", c.LedgerOTLPKeyFile},
		{"--ledger-otlp-headers-file", c.LedgerOTLPHeadersFile},
	}
	for _, f := range files {
		switch {
		case f.path == "":
		case !filepath.IsAbs(f.path):
			return fmt.Errorf("%s %q is not an absolute path", f.flag, f.path)
		case c.LedgerOTLPEndpoint == "":
			return fmt.Errorf("%s needs --ledger-otlp-endpoint", f.flag)
		}
	}
	if c.LedgerOTLPEndpoint == "" {
		if c.LedgerOTLPInsecure {
			return errors.New("--ledger-otlp-insecure needs --ledger-otlp-endpoint")
		}
		return nil
	}
	endpoint, err := parseEndpoint(c.LedgerOTLPEndpoint)
	switch {
	case err != nil:
		return err
	case endpoint.Scheme == "https" && c.LedgerOTLPInsecure:
		return fmt.Errorf("--ledger-otlp-insecure: --ledger-otlp-endpoint %q has https",
			c.LedgerOTLPEndpoint)
	case endpoint.Scheme == "https" && c.LedgerOTLPCertFile != "" && c.LedgerOTLPKeyFile == "":
		return errors.New("--ledger-otlp-cert-file needs --ledger-otlp-key-file")
	case endpoint.Scheme == "https" && c.LedgerOTLPKeyFile != "" && c.LedgerOTLPCertFile == "":
		return errors.New("--ledger-otlp-key-file needs --ledger-otlp-cert-file")
	case endpoint.Scheme == "https":
		return nil
	case !c.LedgerOTLPInsecure:
		return fmt.Errorf("--ledger-otlp-endpoint %q would get records and headers without "+
			"encryption: want https, or --ledger-otlp-insecure", c.LedgerOTLPEndpoint)
	}
	for _, f := range files[:3] {
		if f.path != "" {
			return fmt.Errorf("%s needs https in --ledger-otlp-endpoint", f.flag)
		}
	}
	return nil
}

// parseEndpoint returns the address of a server of OTLP/HTTP. A base URL gets the path for logs.
func parseEndpoint(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, fmt.Errorf("--ledger-otlp-endpoint: %w", errors.Unwrap(err)) // it has the text
	case u.User != nil:
		return nil, fmt.Errorf("--ledger-otlp-endpoint %q: want no credentials there, but in "+
			"--ledger-otlp-headers-file", u.Redacted())
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, fmt.Errorf(
			"--ledger-otlp-endpoint %q: want http://HOST:PORT or https://HOST:PORT", text)
	}
	if strings.Trim(u.Path, "/") == "" {
		u.Path = "/v1/logs"
	}
	return u, nil
}

// newClient returns a client with what the files have now.
func (c Config) newClient() (*http.Client, error) {
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, MaxIdleConns: 1, IdleConnTimeout: time.Minute,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if path := c.LedgerOTLPCAFile; path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read --ledger-otlp-ca-file: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("read --ledger-otlp-ca-file %s: no certificate in it", path)
		}
		transport.TLSClientConfig.RootCAs = pool
	}
	if path := c.LedgerOTLPCertFile; path != "" {
		certificate, err := tls.LoadX509KeyPair(path, c.LedgerOTLPKeyFile)
		if err != nil {
			return nil, fmt.Errorf(
				"read --ledger-otlp-cert-file %s and --ledger-otlp-key-file %s: %w",
				path, c.LedgerOTLPKeyFile, err)
		}
		transport.TLSClientConfig.Certificates = []tls.Certificate{certificate}
	}
	return &http.Client{
		Timeout: otlpTimeout, Transport: transport,
		// Headers are for this server only.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// headers returns the headers of the file, none if there is no file. Errors have nothing of what is
// in it.
func (c Config) headers() (http.Header, error) {
	path, headers := c.LedgerOTLPHeadersFile, http.Header{}
	if path == "" {
		return headers, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read --ledger-otlp-headers-file: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxHeaders+1))
	if err == nil && len(text) > maxHeaders {
		err = fmt.Errorf("it has more than %d bytes", maxHeaders)
	}
	if err != nil {
		return nil, fmt.Errorf("read --ledger-otlp-headers-file %s: %w", path, err)
	}
	number := 0
	for line := range bytes.Lines(text) {
		number++
		content := strings.TrimSpace(string(line))
		if content == "" || strings.HasPrefix(content, "#") {
			continue
		}
		name, value, found := strings.Cut(content, ":")
		value = strings.TrimSpace(value)
		switch {
		case !found || !httpguts.ValidHeaderFieldName(name),
			!httpguts.ValidHeaderFieldValue(value):
			return nil, fmt.Errorf("read --ledger-otlp-headers-file %s: line %d: want NAME: VALUE",
				path, number)
		case slices.Contains(reservedHeaders, http.CanonicalHeaderKey(name)):
			return nil, fmt.Errorf("read --ledger-otlp-headers-file %s: line %d: %s cannot be set",
				path, number, http.CanonicalHeaderKey(name))
		}
		headers.Add(name, value)
	}
	return headers, nil
}

// explain says which flag is at fault if a server's certificate is not accepted.
func (c Config) explain(err error) error {
	var invalid *tls.CertificateVerificationError
	if !errors.As(err, &invalid) {
		return err
	}
	trusted := "the system's CAs"
	if c.LedgerOTLPCAFile != "" {
		trusted = "the CAs of --ledger-otlp-ca-file " + c.LedgerOTLPCAFile
	}
	return fmt.Errorf("the server's certificate does not pass with %s: %w", trusted, err)
}
