// kafkajs: node kafkajs_driver.js BOOTSTRAP. It does the jobs produce, consume, member, transact and
// relay of tests/clients/__init__.py.
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

async function transact(job) {
  const producer = kafka.producer({ transactionalId: job.topic, idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  for (const [number, commit] of job.commits.entries()) {
    const transaction = await producer.transaction();
    await transaction.send({ topic: job.topic, messages: [{ value: String(number), partition: 0 }] });
    await (commit ? transaction.commit() : transaction.abort());
    say("ended", number);
  }
  await producer.disconnect();
}

// Runs a member of a group until the word "stop"; `more` are what `run` gets. kafkajs gives up if a commit is refused
// because the member is out, as when it was stopped for long: then it joins again, as an application does.
async function inGroup(job, topic, more) {
  while (await isOut(job, topic, more));
}

async function isOut(job, topic, more) {
  const consumer = kafka.consumer({
    groupId: job.group,
    maxWaitTimeInMs: 100,
    sessionTimeout: job.session_ms,
    heartbeatInterval: Math.min(Math.floor(job.session_ms / 6), 500),
    rebalanceTimeout: job.poll_ms || 60000,
  });
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    say("assigned", [...(payload.memberAssignment[topic] || [])].sort((one, other) => one - other));
  });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  const out = await new Promise((done, fail) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => {
      if (payload.restart) return;
      if (payload.error.cause?.type === "UNKNOWN_MEMBER_ID") done(true);
      else fail(payload.error);
    });
    stopped.promise.then(() => done(false));
    consumer.run({ autoCommit: false, ...more(consumer) }).catch(fail);
  });
  await consumer.disconnect();
  return out;
}

async function member(job) {
  await inGroup(job, job.topic, (consumer) => ({
    eachMessage: async ({ topic, partition, message }) => {
      const offset = Number(message.offset);
      say("read", partition, offset);
      if (job.hold === offset) await released.promise;
      try {
        await consumer.commitOffsets([{ topic, partition, offset: String(offset + 1) }]);
        say("committed", partition, offset);
      } catch (error) {
        say("not committed", error.type || error.name);
        throw error;
      }
    },
  }));
}

async function relay(job) {
  const producer = kafka.producer({ transactionalId: job.group, idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  let relayed = 0;
  await inGroup(job, job.source, () => ({
    eachBatch: async ({ batch, resolveOffset }) => {
      const transaction = await producer.transaction();
      const messages = batch.messages.map(({ value }) => ({ value, partition: batch.partition }));
      await transaction.send({ topic: job.target, messages });
      const offset = String(Number(batch.lastOffset()) + 1);
      const partitions = [{ partition: batch.partition, offset }];
      await transaction.sendOffsets({ consumerGroupId: job.group, topics: [{ topic: batch.topic, partitions }] });
      if (relayed >= job.hold) {
        say("held");
        await released.promise;
      }
      await transaction.commit();
      resolveOffset(batch.lastOffset());
      relayed += messages.length;
      say("relayed", messages.length);
    },
  }));
  await producer.disconnect();
}

// Promises that the words "stop" and "go" keep, for the job that runs.
const open = () => {
  const made = {};
  made.promise = new Promise((keep) => (made.keep = keep));
  return made;
};
let stopped = open();
let released = open();
const verbs = { produce, consume, member, transact, relay };
say("client", version);
let before = Promise.resolve();
const lines = require("readline").createInterface({ input: process.stdin });
lines.on("line", (line) => {
  if (line === "stop") stopped.keep();
  if (line === "stop" || line === "go") return released.keep();
  const job = JSON.parse(line);
  before = before
    .then(() => verbs[job.do](job))
    .catch((error) => say("error", error.type || error.name, String(error.message).slice(0, 300)))
    .then(() => {
      stopped = open();
      released = open();
      say("done");
    });
});
lines.on("close", () => process.exit(0));
