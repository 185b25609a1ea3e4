// Command perftest stands in for ib_write_bw and ib_read_lat where no HCA is: a server and a client that meet by TCP, as
// theirs do, and print as they do. mlx5_3 has a quarter of the bandwidth.
package main

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"
)

func main() {
	if err := run(filepath.Base(os.Args[0]), os.Args[1:]); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func run(program string, args []string) error {
	set := flag.NewFlagSet(program, flag.ContinueOnError)
	device, port := set.String("d", "", "HCA"), set.String("p", "", "TCP port")
	seconds, version := set.Duration("D", 0, "seconds"), set.Bool("version", false, "")
	for _, name := range []string{"s", "i", "n"} {
		set.String(name, "", "")
	}
	set.Bool("report_gbits", false, "")
	for i, arg := range args {
		if arg == "-D" {
			args[i+1] += "s"
		}
	}
	if err := set.Parse(args); err != nil {
		return err
	}
	if *version {
		fmt.Println("Version: 6.10")
		return nil
	}
	if err := meet(set.Arg(0), *port, *seconds); err != nil {
		return err
	}
	if program == "ib_read_lat" {
		fmt.Print(" #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n" +
			" 8       1000          1.92           4.96         1.96              1.97             0.04            2.06                    4.96\n")
		return nil
	}
	gbps := 388.12
	if *device == "mlx5_3" {
		gbps /= 4
	}
	fmt.Printf(" #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n 65536      1007             0.00               %.2f             0.7\n", gbps)
	return nil
}

// meet waits for the client, or goes to the server, and then until the measurement is over.
func meet(host, port string, duration time.Duration) error {
	if host != "" {
		c, err := net.Dial("tcp", net.JoinHostPort(host, port))
		if err != nil {
			return fmt.Errorf("Couldn't connect to %s:%s", host, port) //nolint:staticcheck // As perftest has it.
		}
		defer c.Close()
		time.Sleep(duration)
		return nil
	}
	l, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return errors.Join(errors.New("Couldn't listen"), err) //nolint:staticcheck // As perftest has it.
	}
	c, err := l.Accept()
	if err != nil {
		return err
	}
	_, _ = c.Read(make([]byte, 1)) // Until the client is done.
	return errors.Join(c.Close(), l.Close())
}
