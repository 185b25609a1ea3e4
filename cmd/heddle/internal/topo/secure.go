package topo

import (
	"fmt"
	"net/http"
	"net/url"

	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
)

// secrets are how to ask a topo-master with --tls-cert and --authenticate.
type secrets struct{ tokenFile, caFile, serverName string }

func (s *secrets) register(set *cli.FlagSet) {
	set.StringVar(&s.tokenFile, "token-file", "",
		"`FILE` with a bearer token for --server, such as of kubectl create token --audience=heddle-topo-master")
	set.StringVar(&s.caFile, "ca-file", "",
		"`FILE` with the authorities, in PEM, that vouch for --server; default those of the system")
	set.StringVar(&s.serverName, "tls-server-name", "",
		"`NAME` in the certificate of --server, if it is asked at another address, such as a forwarded port")
}

// check tells what cannot be meant.
func (s *secrets) check(server *url.URL) error {
	for _, flag := range []struct{ name, value string }{
		{"token-file", s.tokenFile}, {"ca-file", s.caFile}, {"tls-server-name", s.serverName},
	} {
		switch {
		case flag.value == "":
		case server == nil:
			return cli.Usagef("topo", "topo: --%s is for --server: the API server vouches for topo-master, "+
				"and passes no token on", flag.name)
		case server.Scheme != "https":
			return cli.Usagef("topo", "topo: --%s is for a --server of https://", flag.name)
		}
	}
	return nil
}

// client asks nobody but the server: a token is not for where a redirect leads.
func (s *secrets) client() (*http.Client, error) {
	transport, err := rest.TransportFor(&rest.Config{
		BearerTokenFile: s.tokenFile, TLSClientConfig: rest.TLSClientConfig{CAFile: s.caFile, ServerName: s.serverName},
	})
	if err != nil {
		return nil, fmt.Errorf("read --token-file and --ca-file: %w", err)
	}
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}
