package topo

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

func bandwidthCommand(at *Master) *cobra.Command {
	c := &cobra.Command{
		Use: "bandwidth [GROUP]", Args: cobra.MaximumNArgs(1),
		Short: "Show what fabric tests measured; exit code 1 if a port is slow",
	}
	output := cli.AddOutput(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		groups := args
		if len(groups) == 0 {
			t, err := read[snapshot.Topology](c, at, "/v1/topology")
			if err != nil {
				return err
			}
			for i := range t.Tree {
				if t.Tree[i].Nodes != nil {
					groups = append(groups, t.Tree[i].Name)
				}
			}
		}
		ports, omitted := []snapshot.Port{}, 0
		for _, group := range groups {
			list, err := read[snapshot.PortList](c, at, "/v1/ports", "group", group)
			if err != nil {
				return err
			}
			untested := func(p snapshot.Port) bool { return p.Test == nil || p.Foreign }
			ports, omitted = append(ports, slices.DeleteFunc(list.Ports, untested)...), omitted+list.Omitted
		}
		table, slow := bandwidthTable(ports)
		if omitted > 0 {
			table += cli.Count(omitted, "port") + " not shown: name smaller groups.\n"
		}
		return output.PrintFindings(c, ports, table, slow)
	}
	output.AddWatch(c)
	return c
}

func bandwidthTable(ports []snapshot.Port) (table string, slow int) {
	rows := [][]string{{"NODE", "HCA", "RAIL", "SWITCH", "GBIT/S", "EXPECTED", "LATENCY", "AGE", "FAULT"}}
	for i := range ports {
		p := &ports[i]
		r := p.Test
		far := "-"
		if p.Switch != nil {
			far = strings.TrimSpace(p.Switch.Name + " " + p.SwitchPort)
		}
		fault := ""
		if r.Fault != "" {
			slow++
			fault = r.Fault + ": " + r.What + " " + r.Value + ", limit " + r.Limit
		}
		rows = append(rows, []string{
			p.Node, fmt.Sprintf("%s:%d", p.HCA, p.Port), fmt.Sprint(p.Rail.Rail), far, fmt.Sprint(r.Gbps),
			fmt.Sprint(r.ExpectedGbps), fmt.Sprintf("%.1fus", float64(r.LatencyNanoseconds)/1000), cli.Age(r.Time.Time), fault,
		})
	}
	if len(rows) == 1 {
		return "No port was tested: see heddle fabric test.\n", 0
	}
	return cli.Table(rows), slow
}
