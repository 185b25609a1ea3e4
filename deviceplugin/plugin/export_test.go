package plugin

// Streams counts the kubelets that watch.
func (p *Plugin) Streams() int { return p.ledger.counts().streams }
