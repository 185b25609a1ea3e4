package clustermanager

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"mime"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/internal/hostfile"
	"github.com/heddle-dev/heddle/topo/worker"
)

const (
	// patience bounds one exchange as a whole, connecting included.
	patience     = 20 * time.Second
	maxRedirects = 3
	maxSecret    = 64 << 10
	maxHeaders   = 64 << 10
)

// client asks one server.
type client struct {
	address, secrets, agent string
	patience                time.Duration

	// tag and last are the server's ETag and what came with it.
	tag  string
	last worker.Place
}

// fetch asks once.
func (c *client) fetch(ctx context.Context, node string) (worker.Place, error) {
	ctx, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	request, err := c.request(ctx, node)
	if err != nil {
		return worker.Place{}, err
	}
	transport, err := c.transport()
	if err != nil {
		return worker.Place{}, err
	}
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport, CheckRedirect: redirect}).Do(request)
	if err != nil {
		return worker.Place{}, c.cause(ctx, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusNotModified && c.tag != "" {
		return c.last, nil
	}
	if err := acceptable(answer); err != nil {
		return worker.Place{}, err
	}
	found, err := decode(answer.Body, node)
	if err != nil {
		return worker.Place{}, c.cause(ctx, err)
	}
	c.tag, c.last = answer.Header.Get("ETag"), found
	return found, nil
}

// request returns the question: GET ADDRESS?node=NAME.
func (c *client) request(ctx context.Context, node string) (*http.Request, error) {
	u, err := url.Parse(c.address)
	if err != nil || u.Scheme != "https" {
		return nil, fmt.Errorf("invalid https address %q", c.address)
	}
	query := u.Query()
	query.Set("node", node)
	u.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", c.agent)
	if c.tag != "" {
		request.Header.Set("If-None-Match", c.tag)
	}
	if c.secrets == "" {
		return request, nil
	}
	user, err := c.secret("user")
	if err != nil {
		return nil, err
	}
	password, err := c.secret("password")
	if err != nil {
		return nil, err
	}
	if strings.Contains(user, ":") {
		return nil, errors.New("the Secret's user has a colon, which basic authentication cannot carry")
	}
	request.SetBasicAuth(user, password)
	return request, nil
}

// secret reads one key of the Secret. Its value is base64 in the API object
// and plain in the file: the kubelet decoded it, and nothing decodes it again.
// One newline at the end is dropped, which `echo VALUE | base64` puts there.
func (c *client) secret(key string) (string, error) {
	b, err := hostfile.ReadAtMost(filepath.Join(c.secrets, key), maxSecret)
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return "", fmt.Errorf("the Secret's %s: %w", key, at.Err) // The path is a container's.
	}
	return strings.TrimSuffix(string(b), "\n"), err
}

// transport trusts the authorities of the system, or the Secret's ca.crt in their place if it
// exists. It is made for each request, since Secrets change, and holds no connection between two
// questions minutes apart.
func (c *client) transport() (*http.Transport, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.secrets != "" {
		switch pem, err := c.secret("ca.crt"); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		default:
			config.RootCAs = x509.NewCertPool()
			if !config.RootCAs.AppendCertsFromPEM([]byte(pem)) {
				return nil, errors.New("the Secret's ca.crt has no certificate in it")
			}
		}
	}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: config, DisableKeepAlives: true,
		MaxResponseHeaderBytes: maxHeaders, ForceAttemptHTTP2: true,
	}, nil
}

// redirect follows within one host only: the password is for that one.
func redirect(next *http.Request, before []*http.Request) error {
	switch first := before[0].URL; {
	case next.URL.Scheme != "https" || !strings.EqualFold(next.URL.Host, first.Host):
		return fmt.Errorf("it redirects to %s://%s, which is not followed", next.URL.Scheme, next.URL.Host)
	case len(before) > maxRedirects:
		return fmt.Errorf("more than %d redirects", maxRedirects)
	}
	return nil
}

// acceptable checks an answer before its body is read.
func acceptable(answer *http.Response) error {
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("it answers %d %s", answer.StatusCode, http.StatusText(answer.StatusCode))
	}
	given := answer.Header.Get("Content-Type")
	if kind, _, err := mime.ParseMediaType(given); given != "" && (err != nil || kind != "application/json") {
		return fmt.Errorf("it answers %.60q, not application/json", given)
	}
	return nil
}

// cause returns the error, without addresses and ports of single connections:
// equal failures must read alike.
func (c *client) cause(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("no whole answer within %s", c.patience)
	}
	if at, ok := errors.AsType[*url.Error](err); ok {
		err = at.Err
	}
	if at, ok := errors.AsType[*net.OpError](err); ok {
		return fmt.Errorf("%s: %w", at.Op, at.Err)
	}
	return err
}
