// kafkajs: node kafkajs_driver.js BOOTSTRAP. It does the jobs produce and consume of tests/clients/__init__.py.
const { Kafka, logLevel } = require("kafkajs");
const { version } = require("kafkajs/package.json");

const say = (...what) => process.stdout.write(JSON.stringify(what) + "\n");
const kafka = new Kafka({
  brokers: [process.argv[2]],
  logLevel: logLevel.NOTHING,
  requestTimeout: 10000,
  retry: { initialRetryTime: 20, maxRetryTime: 200, retries: 50 },
});
const later = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

async function produce(job) {
  const idempotent = Boolean(job.idempotent);
  const producer = kafka.producer({ idempotent, ...(idempotent ? { maxInFlightRequests: 1 } : {}) });
  await producer.connect();
  const sent = [];
  for (let number = job.numbers[0]; number < job.numbers[1]; number++) {
    const messages = [{ value: String(number).padEnd(job.size || 0), partition: number % job.partitions }];
    sent.push(
      producer.send({ topic: job.topic, messages, acks: job.acks === undefined ? -1 : job.acks }).then(
        ([told]) => say("acked", number, told.partition, Number(told.baseOffset)),
        (error) => say("refused", number, error.type || error.name),
      ),
    );
    if (job.rate) await later(1000 / job.rate);
  }
  await Promise.all(sent);
  await producer.disconnect();
}

async function consume(job) {
  // kafkajs reads only as the member of a group.
  const consumer = kafka.consumer({ groupId: `unused-${job.topic}`, maxWaitTimeInMs: 100 });
  await consumer.connect();
  await consumer.subscribe({ topic: job.topic, fromBeginning: true });
  let left = job.count;
  await new Promise((done, fail) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => {
      if (!payload.restart) fail(payload.error);
    });
    consumer.run({
      eachMessage: async ({ partition, message }) => {
        if (left-- > 0) {
          const text = (data) => (data === null ? null : data.toString("base64"));
          say("record", partition, Number(message.offset), Number(message.timestamp), text(message.key), text(message.value), []);
        }
        if (left === 0) done();
      },
    });
  });
  await consumer.disconnect();
}

const verbs = { produce, consume };
say("client", version);
let before = Promise.resolve();
const lines = require("readline").createInterface({ input: process.stdin });
lines.on("line", (line) => {
  if (line === "stop" || line === "go") return;
  const job = JSON.parse(line);
  before = before
    .then(() => verbs[job.do](job))
    .catch((error) => say("error", error.type || error.name, String(error.message).slice(0, 300)))
    .then(() => say("done"));
});
lines.on("close", () => process.exit(0));
